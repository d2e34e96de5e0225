"""The counters of a worker since its start."""

from __future__ import annotations

import collections
from dataclasses import dataclass, field

from cachefs.core.histogram import Histogram


@dataclass(slots=True)
class Counters:
    """The counters: bytes if the name ends in `_bytes`, else events."""

    hits: int = 0
    hit_bytes: int = 0
    misses: int = 0
    origin_requests: int = 0
    origin_bytes: int = 0
    peer_bytes: int = 0  # from other workers
    tier_bytes: int = 0  # from other tiers of this one
    refused: int = 0
    evicted_files: collections.Counter[str] = field(default_factory=collections.Counter)
    evicted_bytes: int = 0
    freed_files: int = 0
    verified: int = 0
    bad_pages: int = 0
    scrubbed_bytes: int = 0
    fills_in_flight: int = 0
    scratch_fills: int = 0  # that wrote to the scratch area
    fill_s: Histogram = field(default_factory=Histogram)  # of successful pieces
    errors: collections.Counter[str] = field(default_factory=collections.Counter)
