"""The supply of one tier's pages: the source and the threads that read it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from worker.fill.downloads import Downloads
from worker.fill.fetch import Piece
from worker.fill.small.reads import SmallReads
from worker.fill.source import NO_EPOCH, Purpose, Source
from worker.fill.source_shares import Source as SourceKey
from worker.fill.source_shares import SourceShares
from worker.runtime.threads import Done, LoopCallbackQueue, Threads
from worker.tier.config import WorkerConfig

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Supply:
    """`fetchers` fill what this node owns, and serve peers: they wait for no peer's fills. `askers`
    fetch what peers own. `loaders` are fetchers for several pages at a time: they move bytes and
    run little Python."""

    source: Source
    small: SmallReads
    downloads: Downloads
    fetchers: SourceShares
    askers: SourceShares
    loaders: SourceShares

    def purpose_of_read(self, piece: Piece) -> tuple[Purpose, int | None]:
        """Returns the purpose of a piece for a reader, and the epoch of `Source.waits_for_peers`. A
        `READ` that waits for no peer is a `SERVE`."""
        epoch = self.source.waits_for_peers(piece.entry.origin, piece.offset)
        if epoch is None:
            return Purpose.SERVE, None
        return Purpose.CUT_OFF if epoch == NO_EPOCH else Purpose.READ, epoch

    def is_cut_off(self, piece: Piece) -> bool:
        """Returns whether a fill by this node has to become a `CUT_OFF`."""
        return piece.purpose is Purpose.SERVE and self.purpose_of_read(piece)[0] is Purpose.CUT_OFF

    def has_stand_in(self, piece: Piece) -> bool:
        """Returns whether a fill by this node that was refused has to become a `CUT_OFF`."""
        is_own = piece.purpose is Purpose.SERVE
        return is_own and self.source.has_stand_in(piece.entry.origin, piece.offset)

    def submit(self, piece: Piece, function: Callable[..., Any], *args: Any, done: Done) -> None:
        """Runs a call for a piece, as `Threads.submit` does."""
        source, shares, behind = self._way(piece)
        shares.submit(source, function, *args, done=done, behind=behind)

    def run(self, piece: Piece, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Runs a call for a piece, as `Threads.run` does."""
        source, shares, behind = self._way(piece)
        return shares.run(source, function, *args, behind=behind)

    def _way(self, piece: Piece) -> tuple[SourceKey, SourceShares, bool]:
        """Returns the source of a piece, the threads that fetch it, and whether behind others."""
        origin = piece.entry.origin
        source = origin.content.namespace, origin.ufs
        if piece.purpose in (Purpose.READ, Purpose.CUT_OFF):
            return source, self.askers, False
        is_large = piece.end - piece.first > 1
        in_loaders = is_large and self.loaders.has_room(source)
        return source, self.loaders if in_loaders else self.fetchers, piece.is_for_nobody

    def _all(self) -> Iterator[SourceShares]:
        yield from (self.fetchers, self.askers, self.loaders)

    def count_out(self, stuck: int, *, cause: str = "disk") -> None:
        """Applies `Threads.count_out` to all kinds of threads: stuck threads may be of any kind."""
        for shares in self._all():
            shares.count_out(stuck, cause=cause)

    def end_reads(self) -> None:
        """Ends small reads and downloads, before `close`: threads get what is left of them."""
        self.small.close()
        self.downloads.close()

    def close(self, wait_s: float) -> bool:
        """Ends the threads, and waits for the end of downloads. Blocks: not for the loop's thread.
        Returns False if some of them may still write after `wait_s`."""
        until_s = time.monotonic() + wait_s
        ended = True
        for shares in self._all():
            ended &= shares.threads.close(until_s - time.monotonic())
        return ended & self.downloads.wait_stopped(max(0.0, until_s - time.monotonic()))


def make_supply(
    config: WorkerConfig, source: Source, wake: LoopCallbackQueue, *, in_memory: bool
) -> Supply:
    """Returns the supply of a new worker. `in_memory`: writes to the tier never wait for a
    disk."""
    fetchers = Threads("fetch", config.fetch_threads, wake)
    loaders = Threads("load", config.load_threads, wake)
    return Supply(
        source=source,
        small=SmallReads(source, None if in_memory else fetchers, wake),
        downloads=Downloads(source, None if in_memory else loaders, wake),
        fetchers=SourceShares(fetchers),
        askers=SourceShares(Threads("ask", config.ask_threads, wake)),
        loaders=SourceShares(loaders),
    )
