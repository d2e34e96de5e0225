"""Loads of contents: what is wanted, and what became of it."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from cachefs.core.errors import CacheFSError
from cachefs.core.model import Origin
from cachefs.core.pages import BLOCK_PAGES, PageRange, page_count
from cachefs.core.placement import BLOCK_BYTES
from worker.fill.source import Purpose
from worker.store.holds import Hold

PIECES: Final = 4  # of one block at once
MISSING: Final = "missing"

Gate = Callable[[int], Awaitable[None]]  # before a request for that number of bytes


class Missing(CacheFSError):
    """A file was dropped while it was loaded."""

    code = MISSING


class Loaded(NamedTuple):
    """The result of a load. `fetched_bytes`: from the origin."""

    fetched_bytes: int
    error: CacheFSError | None


class Load(NamedTuple):
    """A request to make a block of a file (-1: all of it) complete. `hold`: None for no hold.
    `gate` is awaited before each request of a file that takes several; it raises to end the load.
    `came` is called when the requests are over, or when the load is likely to make none. `ended` is
    called once, in the loop, perhaps before `load` returns. `purpose`: a `SERVE` gets room whatever
    admission decides; a `READ` gets only what a reader's fill would get, and waits for peers as
    that does."""

    origin: Origin
    block: int
    hold: Hold | None
    gate: Gate | None
    came: Callable[[], None]
    ended: Callable[[Loaded], None]
    purpose: Purpose = Purpose.SERVE

    @property
    def pages(self) -> PageRange:
        return pages_of(self.origin.size, self.block)

    @property
    def is_served(self) -> bool:
        return self.purpose is Purpose.SERVE


class PrefetchResult(enum.Enum):
    """The result of a request to fetch a file ahead."""

    BEGUN = enum.auto()
    HERE = enum.auto()  # some or all of it is cached, or it is in flight
    IN_TRANSIT = enum.auto()  # it is in the transit window, or in flight to it
    REFUSED = enum.auto()  # memory is short, admission or a quota refuses it, the disk is degraded


async def load_whole(
    load: Callable[[Load], None],
    origin: Origin,
    hold: Hold | None = None,
    purpose: Purpose = Purpose.SERVE,
) -> CacheFSError | None:
    """Makes a file complete and durable by `load`, that of a tier. Returns the error of the load.
    Cancelled: the load continues."""
    ended: asyncio.Future[Loaded] = asyncio.get_running_loop().create_future()

    def end(loaded: Loaded) -> None:
        if not ended.done():
            ended.set_result(loaded)

    load(Load(origin, -1, hold, None, _ignore, end, purpose))
    return (await ended).error


def _ignore() -> None:
    pass


def pages_of(size_bytes: int, block: int) -> PageRange:
    """The pages of a block of a file of that size; -1: of all of it."""
    if block < 0:
        return 0, page_count(size_bytes)
    first = block * BLOCK_PAGES
    end = page_count(min(size_bytes, (block + 1) * BLOCK_BYTES))
    return min(first, end), end
