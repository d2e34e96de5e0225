"""The parts of one worker that `worker.tiers` and the scrubber work with."""

from __future__ import annotations

from typing import NamedTuple

from worker.catalog import Catalog
from worker.housekeeping import Housekeeping
from worker.parts import Parts
from worker.space import Space
from worker.watch import TierWatch


class Inside(NamedTuple):
    """All owned by the loop."""

    parts: Parts
    catalog: Catalog
    space: Space
    housekeeping: Housekeeping
    watch: TierWatch
