"""A range is filled piece by piece: how many at once, what ends it, and what room is left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cachefs.core.errors import CacheFSError, NoSpace, Unavailable
from cachefs.core.model import PAGE_BYTES, ContentId, NamespaceId, Origin
from tests.unit.worker.rig import run
from worker.fill.fetch import Piece
from worker.fill.range_fill import Limits, RangeFill
from worker.fill.transfer import PIECE_PAGES
from worker.tier.entry import Entry
from worker.tier.entry_state import State
from worker.tier.ledger import allocation

PIECES = 5
PAGES = PIECES * PIECE_PAGES
NAMESPACE = NamespaceId(bytes(16))


class FakeFiller:
    """Keeps what is claimed until `end`."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.rooms: list[int] = []
        self.most = 0

    def claim(self, entry: Entry, first: int, end: int, **options: Any) -> None:
        piece = Piece(entry, first, end)
        piece.ended = options["ended"]
        assert options["background"]
        assert options["cache_only"]
        entry.claim(first, end, asyncio.get_running_loop())
        self.pieces.append(piece)
        self.rooms.append(options["room_bytes"])
        self.most = max(self.most, len(self.pieces))

    def end(self, error: CacheFSError | None = None, *, is_cached: bool = True) -> None:
        """Ends the oldest piece."""
        piece = self.pieces.pop(0)
        for page in range(piece.first, piece.end):
            if is_cached and error is None:
                piece.entry.pages.add(page)
            piece.entry.settle(page, error)
        assert piece.ended is not None
        piece.ended(piece, error)


def new_entry() -> Entry:
    content = ContentId(NAMESPACE, 7, 1, 9)
    origin = Origin(content, "file:///", b"file", "etag", PAGES * PAGE_BYTES, 0)
    return Entry(origin, content.key, State.EMPTY)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def started(fill: RangeFill) -> asyncio.Task[None]:
    task = asyncio.get_running_loop().create_task(fill.run(0, PAGES))
    await turns()
    return task


def limits(
    pieces: int = 2,
    may_continue: Callable[[], bool] = lambda: True,
    gate: Callable[[int], Awaitable[None]] | None = None,
    *,
    ends_on_refusal: bool = False,
) -> Limits:
    return Limits(pieces, may_continue, gate=gate, ends_on_refusal=ends_on_refusal)


def fill_of(filler: FakeFiller, entry: Entry, some: Limits, room_bytes: int = 0) -> RangeFill:
    return RangeFill(filler, entry, some, room_bytes)  # type: ignore[arg-type]


def test_a_range_is_whole_at_the_end_and_few_pieces_were_in_flight() -> None:
    async def script() -> None:
        filler, entry = FakeFiller(), new_entry()
        room_bytes = allocation(entry.size) + 4096
        fill = fill_of(filler, entry, limits(pieces=2), room_bytes)
        task = await started(fill)
        for _ in range(PIECES):
            assert len(filler.pieces) > 0
            filler.end()
            await turns()
        await task
        assert entry.pages.complete
        assert filler.most == 2
        assert fill.room_bytes == 4096, "what no piece took"
        assert sum(filler.rooms) == allocation(entry.size)

    run(script())


def test_the_error_of_a_piece_ends_it() -> None:
    async def script() -> None:
        filler, entry = FakeFiller(), new_entry()
        task = await started(fill_of(filler, entry, limits(pieces=2)))
        filler.end(Unavailable("the origin is away"))
        with pytest.raises(Unavailable):
            await task
        assert len(filler.pieces) == 1, "the other piece continues, no further one begins"

    run(script())


@pytest.mark.parametrize("ends", [True, False])
def test_a_refusal_ends_only_a_fill_that_is_to_end_then(ends: bool) -> None:
    async def script() -> None:
        filler, entry = FakeFiller(), new_entry()
        task = await started(fill_of(filler, entry, limits(pieces=1, ends_on_refusal=ends)))
        filler.end(is_cached=False)
        await turns()
        assert len(filler.pieces) == (0 if ends else 1)
        while filler.pieces:
            filler.end()
            await turns()
        await task
        assert entry.pages.present_count == (0 if ends else PAGES - PIECE_PAGES)

    run(script())


def test_it_ends_where_it_may_not_continue() -> None:
    async def script() -> None:
        filler, entry = FakeFiller(), new_entry()
        answers = [True, False, True, True, True]
        task = await started(fill_of(filler, entry, limits(1, lambda: answers.pop(0))))
        filler.end()
        await task
        assert entry.pages.present_count == PIECE_PAGES
        assert len(answers) == 3, "it was not asked again"

    run(script())


def test_the_gate_comes_before_each_piece() -> None:
    async def script() -> None:
        filler, entry = FakeFiller(), new_entry()
        passed: list[int] = []
        opened = asyncio.Event()

        async def gate(size_bytes: int) -> None:
            await opened.wait()
            passed.append(size_bytes)

        task = await started(fill_of(filler, entry, limits(pieces=9, gate=gate)))
        assert filler.pieces == []
        opened.set()
        await turns()
        assert passed == [PIECE_PAGES * PAGE_BYTES] * PIECES
        for _ in range(PIECES):
            filler.end()
        await task

    run(script())


async def waiting_for_another_fill(entry: Entry) -> asyncio.Task[None]:
    """Returns a fill that has fetched all pages but the first, which another fill has claimed."""
    filler = FakeFiller()
    entry.claim(0, 1, asyncio.get_running_loop())
    task = await started(fill_of(filler, entry, limits(pieces=9)))
    while filler.pieces:
        filler.end()
    await turns()
    return task


def test_it_waits_for_pages_that_another_fill_claimed_and_claims_none_of_them() -> None:
    async def script() -> None:
        entry = new_entry()
        task = await waiting_for_another_fill(entry)
        assert not task.done()
        entry.pages.add(0)
        entry.settle(0)
        await task
        assert entry.pages.complete

    run(script())


def test_another_fill_without_room_leaves_its_pages_missing() -> None:
    """A reader's, which found none beside a full cache."""

    async def script() -> None:
        entry = new_entry()
        task = await waiting_for_another_fill(entry)
        entry.settle(0, NoSpace("the scratch area is full"))
        await task
        assert [*entry.pages.missing(0, PAGES)] == [(0, 1)]

    run(script())
