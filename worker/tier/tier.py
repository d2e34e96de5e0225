"""The parts of one worker that `worker.cache.cache` and the scrubber work with."""

from __future__ import annotations

from typing import NamedTuple

from worker.tier.admission import Space
from worker.tier.catalog import Catalog
from worker.tier.disk import Parts
from worker.tier.maintenance import Housekeeping
from worker.tier.probe import TierWatch


class Inside(NamedTuple):
    """All owned by the loop."""

    parts: Parts
    catalog: Catalog
    space: Space
    housekeeping: Housekeeping
    watch: TierWatch
