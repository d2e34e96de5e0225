"""One stream of changes for many readers, and walks that a master forgot."""

from __future__ import annotations

import asyncio

import pytest

from cachefs.core.cluster import Walked
from cachefs.core.errors import PositionGone
from cachefs.core.messages import Invalidate
from cachefs.core.model import Inode
from tests.unit.worker_cluster.fake_master import NAMESPACE, file, run
from worker.names import walk
from worker.names.events import KEPT, EventLog


def event(seq: int) -> Invalidate:
    return Invalidate(NAMESPACE, seq, [(1, b"%d" % seq)])


async def take(log: EventLog, after: int, count: int) -> list[int]:
    found: list[int] = []
    async for one in log.after(after):
        found.append(one.seq)
        if len(found) == count:
            break
    return found


def test_every_reader_gets_every_event_in_order() -> None:
    async def script() -> None:
        log = EventLog()
        log.publish([event(1)])
        readers = [asyncio.ensure_future(take(log, -1, 3)) for _ in range(3)]
        await asyncio.sleep(0)
        log.publish([event(2), event(3)])
        await asyncio.sleep(0)
        log.publish([event(4)])
        assert await asyncio.gather(*readers) == [[2, 3, 4]] * 3

    run(script())


def test_a_reader_goes_on_from_a_position() -> None:
    async def script() -> None:
        log = EventLog()
        log.publish([event(seq) for seq in (3, 5, 6)])
        assert await take(log, 3, 2) == [5, 6]
        assert await take(log, 4, 2) == [5, 6]

    run(script())


def test_a_reader_that_is_too_slow_is_told() -> None:
    async def script() -> None:
        log = EventLog()
        reader = log.after(-1)
        first = asyncio.ensure_future(anext(reader))
        await asyncio.sleep(0)
        log.publish([event(1)])
        assert (await first).seq == 1
        log.publish([event(seq) for seq in range(2, KEPT + 3)])
        with pytest.raises(PositionGone):
            await anext(reader)
        with pytest.raises(PositionGone):
            await take(log, 1, 1)
        assert await take(log, 2, 1) == [3]

    run(script())


def test_the_end_ends_readers() -> None:
    async def script() -> None:
        log = EventLog()
        reader = asyncio.ensure_future(take(log, -1, 1))
        await asyncio.sleep(0)
        log.close()
        assert await reader == []

    run(script())


class Master:
    """Walks over `names`, two files at a time; forgets a walk where `forget` says so."""

    def __init__(self, *names: bytes) -> None:
        self.names = [*names]
        self.forget: list[bytes] = []
        self.starts = 0

    async def ask(self, ino: int, known: bool, cursor: bytes) -> Walked:
        if cursor in self.forget:
            self.forget.remove(cursor)
            raise PositionGone("the walk has ended")
        self.starts += not cursor
        first = int(cursor or b"0")
        files: list[tuple[bytes, Inode]] = [(n, file(5)) for n in self.names[first : first + 2]]
        more = first + 2 < len(self.names)
        return Walked(files, b"%d" % (first + 2) if more else b"")

    async def walk(self) -> list[bytes]:
        batches = [batch async for batch in walk.files(self.ask, 1, known=False)]
        return [name for batch in batches for name, _ in batch]


def test_a_walk_is_asked_batch_by_batch() -> None:
    master = Master(*(b"%d" % i for i in range(7)))
    assert asyncio.run(master.walk()) == master.names
    assert asyncio.run(Master().walk()) == []


def test_a_forgotten_walk_starts_anew_and_tells_no_file_twice() -> None:
    master = Master(*(b"%d" % i for i in range(7)))
    master.forget = [b"2", b"6", b"6"]
    assert asyncio.run(master.walk()) == master.names
    assert master.starts == 4


def test_a_walk_whose_place_is_gone_is_not_silently_short() -> None:
    master = Master(*(b"%d" % i for i in range(6)))
    master.forget = [b"4"]
    ask = master.ask

    async def changing(ino: int, known: bool, cursor: bytes) -> Walked:
        if cursor == b"4" and b"3" in master.names:
            master.names.remove(b"3")
        return await ask(ino, known, cursor)

    async def script() -> None:
        with pytest.raises(PositionGone):
            async for _ in walk.files(changing, 1, known=False):
                pass

    run(script())


def test_a_walk_that_is_forgotten_for_ever_fails() -> None:
    master = Master(*(b"%d" % i for i in range(6)))
    master.forget = [b"2"] * 100
    with pytest.raises(PositionGone):
        asyncio.run(master.walk())
    assert master.starts == walk.MOST_STARTS
