"""An open file of a client, as the cache knows it. Owned by the loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worker.cache.downward import Downward
from worker.cache.readahead import ReadAhead

if TYPE_CHECKING:
    from worker.tier.entry import Entry


class Handle:
    """An open of a client. `entry` is None where the client got a descriptor of the whole file.
    `has_file`: the client has a descriptor of the (partial) cache file. `past_tier`: it could not
    read from the tier's disk, and is given nothing of it any more. `takes_bytes`: it understands
    answers with the bytes themselves."""

    __slots__ = ("downward", "entry", "has_file", "past_tier", "readahead", "size", "takes_bytes")

    def __init__(self, size: int, entry: Entry | None = None, *, has_file: bool = False) -> None:
        self.size = size
        self.entry = entry
        self.has_file = has_file
        self.past_tier = False
        self.takes_bytes = False
        self.readahead = ReadAhead()
        self.downward = Downward()
