"""The server's side of the process that reads small files: every read is told of once, whatever the
process does."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.unit.worker.rig import run, until
from tests.unit.worker_small.fake_process import (
    REQUEST,
    FakeProcess,
    Processes,
    ready,
)
from worker.fill.small.engine import HANG_S, MOST_RESTART_S, PING_S, RESTART_S, Engine
from worker.fill.small.wire import MOST_OF_ONE, Got, encode


class Bench:
    """An engine, and what it told: numbers of reads by their order, and None or what they got."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.processes = Processes()
        self.told: list[tuple[int, Got | None]] = []
        self.engine = Engine(self.processes, lambda: self.now_s)
        self.file = os.memfd_create("file")

    def start(self, count: int = 1) -> None:
        first = len(self.told) + self.engine.in_flight

        def heard(number: int) -> Callable[[Got | None], None]:
            return lambda got: self.told.append((number, got))

        for number in range(first, first + count):
            self.engine.start(REQUEST, self.file, heard(number))

    async def taken(self, process: FakeProcess, count: int) -> None:
        """The process has been told of so many reads."""

        def has_come() -> bool:
            process.take()
            return len(process.got) >= count

        await until(has_come)


def on_bench(script: Callable[[Bench, FakeProcess], Awaitable[None]]) -> None:
    """Where the process has just said that it is ready."""

    async def whole() -> None:
        bench = Bench()
        try:
            assert not bench.engine.is_ready
            assert bench.engine.launch()
            await script(bench, await ready(bench.engine, bench.processes))
        finally:
            os.close(bench.file)
            bench.processes.end()
            bench.engine.close(0.0)
            await until(lambda: bench.engine._run is None)

    run(whole())


def test_each_read_comes_with_its_file_and_is_told_of() -> None:
    async def script(bench: Bench, process: FakeProcess) -> None:
        bench.start(3)
        assert process.take() == [], "in the next turn of the loop, all together"
        found: list[Any] = []
        await until(lambda: found.extend(process.take()) or found)
        ((one, two, three),) = found
        inode = os.fstat(bench.file).st_ino
        assert [file for _, file in (one, two, three)] == [inode] * 3
        assert [get.request for get, _ in (one, two, three)] == [REQUEST] * 3
        process.tell(Got(two[0].number, "", 3, 5, 6))
        process.tell(Got(three[0].number, "unreachable", 1), Got(one[0].number, "", 3, 7, 8))
        await until(lambda: len(bench.told) == 3)
        assert [number for number, _ in bench.told] == [1, 2, 0]
        second = bench.told[0][1]
        assert second is not None
        assert (second.checksum, second.allocated_bytes, second.code) == (5, 6, "")
        assert bench.engine.in_flight == 0

    on_bench(script)


def test_one_that_does_not_take_requests_is_waited_for() -> None:
    """A datagram has no more than descriptors of it that the kernel takes."""

    async def script(bench: Bench, process: FakeProcess) -> None:
        count = 5000
        bench.start(count)
        await until(lambda: 0 < len(bench.engine._outbox) < count)
        sizes: list[int] = []

        def have_come() -> bool:
            sizes.extend(len(datagram) for datagram in process.take())
            return sum(sizes) == count

        await until(have_come)
        assert max(sizes) <= MOST_OF_ONE
        numbers = [get.number for get in process.got]
        assert numbers == sorted(set(numbers))
        assert len(numbers) == count

    on_bench(script)


def test_requests_with_long_headers_come_in_more_datagrams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with long session tokens: the process would read a larger datagram in part."""
    headers = [f"x-amz-security-token: {'t' * 20_000}"]
    monkeypatch.setitem(globals(), "REQUEST", REQUEST._replace(headers=headers))

    async def script(bench: Bench, process: FakeProcess) -> None:
        bench.start(2 * MOST_OF_ONE)
        await bench.taken(process, 2 * MOST_OF_ONE)
        assert all(list(get.request.headers) == headers for get in process.got)
        assert not process.killed

    on_bench(script)


@pytest.mark.parametrize("taken", [0, 40])
def test_all_are_told_of_its_end(taken: int) -> None:
    async def script(bench: Bench, process: FakeProcess) -> None:
        bench.start(100)
        if taken:
            await bench.taken(process, 100)
            process.tell(*(Got(get.number, "", 3) for get in process.got[:taken]))
        process.end()
        await until(lambda: len(bench.told) == 100)
        assert [got is None for _, got in bench.told] == [False] * taken + [True] * (100 - taken)
        assert not bench.engine.is_ready
        assert process.killed
        bench.engine.look()
        assert bench.engine._ending == [], "it is reaped"

    on_bench(script)


@pytest.mark.parametrize("data", [b"\xc1", encode([Got(10**6, "", 3)]), encode(["x"])])
def test_one_that_tells_nonsense_is_killed(data: bytes) -> None:
    async def script(bench: Bench, process: FakeProcess) -> None:
        bench.start(2)
        await bench.taken(process, 2)
        process.sock.send(data)
        await until(lambda: process.killed)
        assert bench.told == [], "it may still write"
        assert not bench.engine.is_ready
        process.tell()  # on its way before
        process.end()
        await until(lambda: len(bench.told) == 2)
        assert bench.told == [(0, None), (1, None)]

    on_bench(script)


def test_a_read_that_is_told_of_twice_kills_it() -> None:
    async def script(bench: Bench, process: FakeProcess) -> None:
        bench.start(2)
        await bench.taken(process, 2)
        process.come(process.got[0])
        process.come(process.got[0])
        await until(lambda: process.killed)
        process.end()
        await until(lambda: len(bench.told) == 2)
        assert bench.told[1] == (1, None)

    on_bench(script)


def test_one_that_is_silent_is_asked_and_then_killed() -> None:
    async def script(bench: Bench, process: FakeProcess) -> None:
        bench.engine.look()
        bench.now_s += PING_S - 0.1
        bench.engine.look()
        assert process.take() == []
        bench.now_s += 0.2
        for _ in range(3):
            bench.engine.look()
        assert process.take() == [[]], "once"
        process.tell()
        await until(lambda: bench.engine._run.pinged_s is None)  # type: ignore[union-attr]
        bench.now_s += HANG_S
        bench.engine.look()
        assert process.take() == [[]]
        assert not process.killed
        bench.now_s += HANG_S + 0.1
        bench.engine.look()
        assert process.killed
        assert not bench.engine.is_ready
        assert not bench.engine.launch(), "that one has not ended"

    async def never_ready() -> None:
        bench = Bench()
        bench.engine.launch()
        bench.engine.attend()
        for _ in range(3):
            bench.now_s += HANG_S
            bench.engine.look()
        assert bench.processes.last.killed
        os.close(bench.file)
        bench.processes.end()
        await until(lambda: bench.engine._run is None)

    on_bench(script)
    run(never_ready())


@pytest.mark.parametrize("how", ["is at a write", "writes"])
def test_one_that_writes_to_a_slow_disk_is_not_hanging(how: str) -> None:
    async def script(bench: Bench, process: FakeProcess) -> None:
        run = bench.engine._run
        assert run is not None
        run._words[0] = 7 if how == "is at a write" else 0
        for _ in range(20):
            run._words[1] += how == "writes"
            bench.now_s += HANG_S
            bench.engine.look()
        assert not process.killed
        run._words[0] = 0
        bench.engine.look()
        for _ in range(2):
            bench.now_s += HANG_S + 0.1
            bench.engine.look()
        assert process.killed

    on_bench(script)


@pytest.mark.parametrize("how", ["got", "end"])
def test_one_that_fails_as_it_is_told_keeps_nothing_from_others(how: str) -> None:
    async def script(bench: Bench, process: FakeProcess) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)

        def fail(_: Got | None) -> None:
            raise ZeroDivisionError("nobody expected it")

        for _ in range(3):
            bench.engine.start(REQUEST, bench.file, fail)
            bench.start()
        await bench.taken(process, 6)
        if how == "got":
            process.tell(*(Got(get.number, "", 3) for get in process.got))
        else:
            process.end()
        await until(lambda: len(bench.told) == 3)
        assert bench.engine.in_flight == 0

    on_bench(script)


def test_another_is_started_after_a_while() -> None:
    async def script(bench: Bench, process: FakeProcess) -> None:
        assert bench.engine.launch(), "there is one"
        assert len(bench.processes.started) == 1
        process.end()
        await until(lambda: bench.engine._run is None)
        assert not bench.engine.launch()
        bench.now_s += RESTART_S
        assert bench.engine.launch()
        other = await ready(bench.engine, bench.processes)
        assert other is not process
        bench.start()
        await bench.taken(other, 1)
        other.come(other.got[0])
        await until(lambda: bench.told)

    on_bench(script)


def test_one_that_always_ends_is_started_ever_less_often() -> None:
    async def script(bench: Bench, process: FakeProcess) -> None:
        pauses_s = []
        for _ in range(12):
            bench.processes.last.end()
            await until(lambda: bench.engine._run is None)
            began_s = bench.now_s
            while not bench.engine.may_launch:
                assert not bench.engine.launch()
                bench.now_s += RESTART_S
            pauses_s.append(bench.now_s - began_s)
            assert bench.engine.launch()
            await ready(bench.engine, bench.processes)
        assert pauses_s == [2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300, 300]
        bench.now_s += 2 * MOST_RESTART_S
        for pause_s in (0, RESTART_S):
            bench.processes.last.end()
            await until(lambda: bench.engine._run is None)
            bench.now_s += pause_s
            assert bench.engine.launch()
            await ready(bench.engine, bench.processes)

    on_bench(script)


def test_one_that_cannot_be_started_leaves_nothing() -> None:
    async def script() -> None:
        bench = Bench()
        bench.processes.fault = OSError(errno.EAGAIN, "no process")
        with pytest.raises(OSError, match="no process"):
            bench.engine.launch()
        bench.engine.attend()
        assert bench.engine.close(0.0)
        os.close(bench.file)

    run(script())


@pytest.mark.parametrize("attended", [False, True])
def test_the_close_tells_all_and_starts_no_other(attended: bool) -> None:
    async def script() -> None:
        bench = Bench()
        bench.engine.launch()
        if attended:
            process = await ready(bench.engine, bench.processes)
            bench.start(3)
            await bench.taken(process, 2)
        assert bench.engine.close(0.0)
        assert bench.processes.last.killed
        await until(lambda: bench.engine._run is None)
        assert bench.told == [(number, None) for number in range(3 * attended)]
        bench.now_s += RESTART_S
        assert not bench.engine.launch()
        assert bench.engine.close(0.0)
        os.close(bench.file)
        bench.processes.end()

    run(script())


def test_what_it_writes_to_the_disk_is_seen() -> None:
    async def script(bench: Bench, process: FakeProcess) -> None:
        assert bench.engine.at_disk() == []
        assert bench.engine._run is not None
        bench.engine._run._words[0] = 7
        assert bench.engine.at_disk() == [(bench.engine, 7)]

    on_bench(script)
