"""Small files by the process: what is asked, what is left to threads, and what is told of each."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cachefs.core.errors import Interrupted
from cachefs.core.model import ContentId, NamespaceId, Origin
from connectors.fetch.request import AT_ONCE, NOT_SENT, Ask, Made
from tests.unit.worker.rig import run, until
from tests.unit.worker_small.fake_process import REQUEST, Processes, ready
from worker.fill.small.engine import RESTART_S
from worker.fill.small.reads import RECENT_S, Small, SmallReads
from worker.fill.small.wire import Got
from worker.fill.transfer import DiskFault

CAME = (77, 4096)


class Held:
    """Calls that threads would run, held until a test says so. `caught`: what ends a call."""

    def __init__(self, caught: type[Exception]) -> None:
        self._caught = caught
        self.calls: list[tuple[Callable[..., Any], tuple[Any, ...], Callable[..., None]]] = []

    def submit(self, function: Callable[..., Any], *args: Any, done: Callable[..., None]) -> None:
        self.calls.append((function, args, done))

    def run(self) -> int:
        calls, self.calls = self.calls, []
        for function, args, done in calls:
            try:
                result = function(*args)
            except self._caught as err:
                done(None, err)
            else:
                done(result, None)
        return len(calls)


class Bench:
    """Small reads without threads; `events`: what became of them. It is its own source."""

    def __init__(self, on_disk: bool) -> None:
        self.processes = Processes()
        self.now_s = 1000.0
        self.threads, self.disk = Held(DiskFault), Held(Exception)
        self.answers = True
        self.asked: list[tuple[int, str] | None] = []  # how each request ended
        self.made: list[Made] = []  # what was told of connections
        self.events: list[Any] = []
        self.makes: BaseException | None = None
        self.comes: BaseException | None = None
        self.left: BaseException | None = None
        self.file = os.memfd_create("file")
        self.reads = SmallReads(
            self,  # type: ignore[arg-type]
            self.threads,  # type: ignore[arg-type]
            self.disk if on_disk else None,  # type: ignore[arg-type]
            lambda: self.now_s,
            self.processes,
        )

    def ask(self, origin: Origin) -> Ask | None:
        if not self.answers:
            return None
        number = len(self.asked)
        self.asked.append(None)

        def ended(size_bytes: int, code: str) -> None:
            assert self.asked[number] is None, "told twice"
            self.asked[number] = size_bytes, code

        return Ask(REQUEST, ended, self.made.append)

    def make_file(self) -> int:
        if self.makes is not None:
            raise self.makes
        return self.file

    def check(self) -> None:
        if self.left is not None:
            raise self.left

    def came(self, got: Got) -> None:
        if self.comes is not None:
            raise self.comes
        if got.errno:
            raise DiskFault(OSError(got.errno, "refused"))
        self.events.append((got.checksum, got.allocated_bytes))

    def start(self) -> bool:
        small = Small(
            ORIGIN,
            self.make_file,
            self.check,
            self.came,
            lambda _, error: self.events.append(error),
            lambda *_: self.events.append("otherwise"),
        )
        return self.reads.start(small)

    async def ready(self) -> None:
        """The process serves, and nothing was asked yet."""
        assert not self.start(), "there is no process"
        assert self.threads.run() == 1
        assert not self.start(), "it has not said that it is ready"
        assert self.asked == [(0, NOT_SENT)]
        assert self.threads.run() == 0, "one is started"
        self.asked.clear()
        await ready(self.reads._engine, self.processes)

    async def end(self, *codes: str) -> None:
        """Those that were sent come to this, in their order; of the last code, so do all after."""
        process, done = self.processes.last, len(self.processes.last.got)
        before = len(self.events)
        await until(lambda: process.take() or process.got[done:])
        for number, get in enumerate(process.got[done:]):
            code = codes[min(number, len(codes) - 1)]
            process.tell(Got(get.number, code, 3, *(CAME if not code else ())))
        await until(lambda: len(self.events) > before)
        await until(lambda: not self.reads._under_way)


ORIGIN = Origin(ContentId(NamespaceId(bytes(16)), 1, 1, 0), "u1", b"f", "e", 3, 0)


def on_bench(script: Callable[[Bench], Awaitable[None]], on_disk: bool = False) -> None:
    async def whole() -> None:
        bench = Bench(on_disk)
        try:
            await script(bench)
        finally:
            bench.processes.end()
            assert bench.reads.close(0.0)
            await until(lambda: bench.reads._engine._run is None)
            os.close(bench.file)
        assert None not in bench.asked, "each request has its end"

    run(whole())


@pytest.mark.parametrize("on_disk", [False, True])
def test_what_comes_is_told(on_disk: bool) -> None:
    async def script(bench: Bench) -> None:
        await bench.ready()
        assert bench.start()
        assert bench.disk.run() == on_disk
        await bench.end("")
        assert bench.events == [CAME, None]
        assert bench.asked == [(3, "")]

    on_bench(script, on_disk)


def test_a_source_that_cannot_be_asked_starts_no_process() -> None:
    async def script(bench: Bench) -> None:
        bench.answers = False
        assert not bench.start()
        assert bench.threads.run() == 0
        assert bench.processes.started == []

    on_bench(script)


@pytest.mark.parametrize("error", [DiskFault(OSError(28, "full")), OSError(5, "untyped")])
@pytest.mark.parametrize("on_disk", [False, True])
def test_a_file_that_cannot_be_made_is_not_asked_for(on_disk: bool, error: Exception) -> None:
    """Whatever its error is, the request's place is free again, and the reader is told."""

    async def script(bench: Bench) -> None:
        await bench.ready()
        bench.makes = error
        assert bench.start()
        assert bench.events == [], "nothing is told before it has returned"
        bench.disk.run()
        await until(lambda: bench.events == [bench.makes])
        assert bench.asked == [(0, NOT_SENT)]
        assert bench.reads._under_way == 0

    on_bench(script, on_disk)


def test_a_file_system_that_refuses_it_is_a_disk_fault() -> None:
    async def script(bench: Bench) -> None:
        await bench.ready()
        assert bench.start()
        process = bench.processes.last
        await until(lambda: process.take() or process.got)
        process.tell(Got(process.got[0].number, "", 3, 77, 0, 28))
        await until(lambda: bench.events)
        assert isinstance(bench.events[0], DiskFault)
        assert bench.asked == [(3, "")]

    on_bench(script)


def test_connections_are_told_whatever_became_of_the_read() -> None:
    async def script(bench: Bench) -> None:
        await bench.ready()
        for _ in range(3):
            assert bench.start()
        process = bench.processes.last
        await until(lambda: process.take() or len(process.got) == 3)
        whole, failed, kept = (get.number for get in process.got)
        process.tell(
            Got(whole, "", 3, *CAME, made=Made(1, 1)),
            Got(failed, "unreachable", 0, made=Made(2, 0)),
            Got(kept, "", 3, *CAME),
        )
        await until(lambda: not bench.reads._under_way)
        assert bench.made == [Made(1, 1), Made(2, 0)]

    on_bench(script)


def test_what_does_not_come_is_left_to_others() -> None:
    async def script(bench: Bench) -> None:
        await bench.ready()
        for _ in range(3):
            assert bench.start()
        await bench.end("origin-error", "", "unreachable")
        assert sorted(map(str, bench.events)) == sorted([str(CAME), "None", *["otherwise"] * 2])
        assert bench.asked == [(3, "origin-error"), (3, ""), (3, "unreachable")]

    on_bench(script)


def test_no_more_are_under_way_than_there_are_places() -> None:
    async def script(bench: Bench) -> None:
        await bench.ready()
        for _ in range(AT_ONCE):
            assert bench.start()
        assert not bench.start()
        assert len(bench.asked) == AT_ONCE
        await bench.end("")
        assert bench.start()
        await bench.end("")

    on_bench(script)


def test_an_end_of_the_process_is_told_and_threads_read_until_there_is_another() -> None:
    async def script(bench: Bench) -> None:
        await bench.ready()
        assert bench.start()
        bench.processes.last.end()
        await until(lambda: bench.events == ["otherwise"])
        assert bench.asked == [(0, Interrupted.code)]
        assert not bench.start()
        assert bench.threads.run() == 0, "not at once"
        bench.now_s += RESTART_S
        bench.asked.clear()
        await bench.ready()
        assert len(bench.processes.started) == 2
        assert bench.start()
        await bench.end("")

    on_bench(script)


def test_an_end_while_a_file_is_made() -> None:
    async def script(bench: Bench) -> None:
        await bench.ready()
        assert bench.start()
        bench.processes.last.end()
        await until(lambda: not bench.reads._engine.is_ready)
        assert bench.disk.run() == 1
        await until(lambda: bench.events == ["otherwise"])
        assert bench.asked == [(0, Interrupted.code)]

    on_bench(script, on_disk=True)


@pytest.mark.parametrize("error", [Interrupted("the tier was left"), OSError(5, "untyped")])
def test_what_is_not_wanted_once_its_file_is_made_is_not_asked_for(error: Exception) -> None:
    async def script(bench: Bench) -> None:
        await bench.ready()
        assert bench.start()
        bench.left = error
        assert bench.disk.run() == 1
        assert bench.events == [error]
        assert bench.reads._under_way == 0
        assert bench.asked == [(0, NOT_SENT)]

    on_bench(script, on_disk=True)


@pytest.mark.parametrize("error", [Interrupted("closing"), ValueError("untyped")])
def test_who_refuses_what_came_takes_no_place(error: Exception) -> None:
    async def script(bench: Bench) -> None:
        await bench.ready()
        bench.comes = error
        assert bench.start()
        await bench.end("")
        assert bench.events == [bench.comes]

    on_bench(script)


def test_a_process_that_cannot_be_started() -> None:
    async def script(bench: Bench) -> None:
        bench.processes.fault = OSError(11, "too many processes")
        assert not bench.start()
        with pytest.raises(OSError, match="too many"):
            bench.threads.run()
        bench.reads._launched(None, OSError(11, "too many processes"))
        bench.processes.fault = None
        bench.now_s += RESTART_S
        bench.asked.clear()
        await bench.ready()

    on_bench(script)


def test_files_come_so_of_late() -> None:
    async def script(bench: Bench) -> None:
        assert not bench.reads.serves
        await bench.ready()
        assert not bench.reads.serves
        assert bench.start()
        assert bench.reads.serves
        await bench.end("")
        bench.now_s += RECENT_S
        assert not bench.reads.serves

    on_bench(script)
