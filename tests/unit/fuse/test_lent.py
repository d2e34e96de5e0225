"""What the server lent to open files goes back when nobody reads it, or when room is short."""

from __future__ import annotations

import os

import pytest
import trio
import trio.testing

from cachefs.core.messages import MOST_KEPT
from cachefs.fuse.handles import Descriptor, FileHandle, Segment
from cachefs.fuse.pread import INLINE
from cachefs.fuse.segment_reclaim import IDLE_TICKS, SHORT_TICKS, TICK_S, SegmentReclaimer


def lend(lent: SegmentReclaimer, handle: FileHandle, start: int, keep: int = MOST_KEPT) -> int:
    """Gives the handle a segment of ten bytes; returns its descriptor."""
    fd = os.memfd_create("segment")
    handle.add_segment(Segment(start, start + 10, start, Descriptor(fd, INLINE)), keep)
    lent.note(handle)
    return fd


def is_open(fd: int) -> bool:
    return os.path.exists(f"/proc/self/fd/{fd}")


@pytest.mark.parametrize(("keep", "ticks"), [(MOST_KEPT, IDLE_TICKS), (1, SHORT_TICKS)])
def test_segments_that_are_not_read_go(keep: int, ticks: int) -> None:
    lent, handle = SegmentReclaimer(), FileHandle(5, 100, 1)
    fd = lend(lent, handle, 0, keep)
    for _ in range(ticks):
        lent.tick()
        assert is_open(fd)
    assert handle.source(3) is not None, "it is read: it stays for as long again"
    for _ in range(ticks + 1):
        lent.tick()
        assert is_open(fd)
    lent.tick()
    assert not is_open(fd)
    assert handle.source(3) is None
    assert not len(lent)


def test_a_descriptor_in_use_is_closed_by_its_last_user() -> None:
    lent, handle = SegmentReclaimer(), FileHandle(5, 100, 1)
    fd = lend(lent, handle, 0)
    with handle.segments[0].descriptor:
        handle.give_back()
        assert is_open(fd)
    assert not is_open(fd)


def test_the_server_says_how_many_are_kept() -> None:
    lent, handle = SegmentReclaimer(), FileHandle(5, 100, 1)
    for start in (0, 10, 20, 30):
        lend(lent, handle, start)
    assert [segment.start for segment in handle.segments] == [10, 20, 30]
    lend(lent, handle, 40, keep=1)
    assert [segment.start for segment in handle.segments] == [40]
    handle.close()


def test_looks_begin_again_with_the_next_segment() -> None:
    lent, handle = SegmentReclaimer(), FileHandle(5, 100, 1)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lent.run)
            for _ in range(2):
                fd = lend(lent, handle, 0)
                await trio.sleep((IDLE_TICKS + 2) * TICK_S)
                assert not is_open(fd)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_what_is_to_be_read_once_goes_when_it_was_read_to_its_end() -> None:
    handle = FileHandle(5, 100, 1)
    once, kept = (os.memfd_create("segment") for _ in range(2))
    handle.add_segment(Segment(0, 10, 0, Descriptor(kept, INLINE)), MOST_KEPT)
    handle.add_segment(Segment(10, 20, 10, Descriptor(once, INLINE), once=True), MOST_KEPT)
    handle.was_read_to(19)
    assert is_open(once)
    handle.was_read_to(20)
    assert not is_open(once)
    assert is_open(kept)
    assert handle.source(15) is None
    handle.give_back()


def test_a_client_keeps_one_segment_where_the_server_would_have_it_keep_none() -> None:
    """Until it was read."""
    lent, handle = SegmentReclaimer(), FileHandle(5, 100, 1)
    fds = [lend(lent, handle, start, keep=0) for start in (0, 10)]
    assert [is_open(fd) for fd in fds] == [False, True]
    assert handle.keep == 1
    handle.give_back()
