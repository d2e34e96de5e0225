"""What is learned of sources for small files, for how long, and what one failure costs."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cachefs.core.errors import Interrupted, NotFound
from cachefs.core.model import ContentId, NamespaceId, Origin
from connectors.base import Ask
from connectors.streams import CONNECTIONS
from tests.unit.worker.rig import run, until
from tests.unit.worker_small.fake_process import REQUEST, Processes, ready
from worker.small.engine import RESTART_S
from worker.small.reads import KEPT_S, MOST_SOURCES, MOST_WAIT, Small, SmallReads
from worker.small.wire import Got
from worker.source import Asker
from worker.transfer import DiskFault

CAME = (77, 4096)


class Held:
    """Calls that threads would run, held until a test says so."""

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[..., Any], tuple[Any, ...], Callable[..., None]]] = []

    def submit(self, function: Callable[..., Any], *args: Any, done: Callable[..., None]) -> None:
        self.calls.append((function, args, done))

    def run(self) -> int:
        calls, self.calls = self.calls, []
        for function, args, done in calls:
            try:
                result = function(*args)
            except DiskFault as err:
                done(None, err)
            else:
                done(result, None)
        return len(calls)


class Bench:
    """Small reads without threads; `events`: what became of them. It is its own source."""

    def __init__(self, on_disk: bool) -> None:
        self.processes = Processes()
        self.now_s = 1000.0
        self.threads, self.disk = Held(), Held()
        self.looks = 0
        self.answers = True
        self.refuses = False
        self.asked: list[tuple[int, str] | None] = []  # how each request ended
        self.events: list[Any] = []
        self.makes: BaseException | None = None
        self.comes: BaseException | None = None
        self.left = False
        self.file = os.memfd_create("file")
        self.reads = SmallReads(
            self,  # type: ignore[arg-type]
            self.threads,  # type: ignore[arg-type]
            self.disk if on_disk else None,  # type: ignore[arg-type]
            lambda: self.now_s,
            self.processes,
        )

    def asker(self, origin: Origin) -> Asker | None:
        self.looks += 1
        if self.refuses:
            raise NotFound("no such source")
        return self.ask if self.answers else None

    def ask(self, origin: Origin) -> Ask:
        number = len(self.asked)
        self.asked.append(None)

        def ended(size_bytes: int, code: str) -> None:
            assert self.asked[number] is None, "told twice"
            self.asked[number] = size_bytes, code

        return Ask(REQUEST, ended)

    def make_file(self) -> int:
        if self.makes is not None:
            raise self.makes
        return self.file

    def check(self) -> None:
        if self.left:
            raise Interrupted("the tier was left")

    def came(self, got: Got) -> None:
        if self.comes is not None:
            raise self.comes
        if got.errno:
            raise DiskFault(OSError(got.errno, "refused"))
        self.events.append((got.checksum, got.allocated_bytes))

    def start(self, source: int = 1) -> bool:
        small = Small(
            origin(source),
            self.make_file,
            self.check,
            self.came,
            lambda _, error: self.events.append(error),
            lambda *_: self.events.append("otherwise"),
        )
        return self.reads.start(small)

    def learn(self, source: int = 1) -> int:
        """How many looks at sources this caused."""
        self.reads.learn(origin(source))
        return self.threads.run()

    async def ready(self) -> None:
        """The first source is known, and the process serves."""
        assert self.learn() == 1
        assert not self.start(), "it has not said that it is ready"
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


def origin(source: int) -> Origin:
    content = ContentId(NamespaceId(bytes(16)), 1, 1, 0)
    return Origin(content, f"u{source}", b"f", "e", 3, 0)


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


def test_a_source_is_looked_at_once_and_again_after_a_while() -> None:
    async def script(bench: Bench) -> None:
        assert not bench.start()
        bench.reads.learn(origin(1))
        bench.reads.learn(origin(1))
        assert not bench.start(), "one is just looking"
        assert bench.threads.run() == 1
        assert not bench.reads.serves
        await ready(bench.reads._engine, bench.processes)
        assert bench.reads.serves
        assert bench.start()
        assert not bench.start(2), "another source"
        bench.now_s += KEPT_S
        assert bench.learn() == 0
        assert bench.start()
        bench.now_s += 1
        assert not bench.start()
        assert bench.learn() == 1
        assert bench.start()
        assert len(bench.processes.started) == 1

    on_bench(script)


@pytest.mark.parametrize("on_disk", [False, True])
def test_what_comes_is_told(on_disk: bool) -> None:
    async def script(bench: Bench) -> None:
        await bench.ready()
        bench.start()
        assert bench.disk.run() == on_disk
        assert bench.events == []
        await bench.end("")
        assert bench.events == [CAME, None]
        assert bench.asked == [(3, "")]
        bench.comes = Interrupted("closing")
        bench.start()
        bench.disk.run()
        await bench.end("")
        assert bench.events == [CAME, None, bench.comes]

    on_bench(script, on_disk)


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_file_that_cannot_be_made_is_not_asked_for(on_disk: bool) -> None:
    async def script(bench: Bench) -> None:
        await bench.ready()
        bench.makes = DiskFault(OSError(28, "full"))
        assert bench.start()
        assert bench.events == [], "not before the start has returned"
        bench.disk.run()
        await until(lambda: bench.events)
        assert bench.events == [bench.makes]
        assert bench.asked == []
        assert bench.reads._under_way == 0

    on_bench(script, on_disk)


def test_a_file_system_that_refuses_it_is_a_disk_fault() -> None:
    async def script(bench: Bench) -> None:
        await bench.ready()
        bench.start()
        process = bench.processes.last
        await until(lambda: process.take())
        process.tell(Got(process.got[0].number, "", 3, errno=28))
        await until(lambda: bench.events)
        (fault,) = bench.events
        assert isinstance(fault, DiskFault)
        assert fault.error.errno == 28
        assert bench.asked == [(3, "")], "the origin has given it"

    on_bench(script)


def test_what_does_not_come_is_left_to_others_with_what_waits_behind_it() -> None:
    async def script(bench: Bench) -> None:
        await bench.ready()
        for _ in range(CONNECTIONS + 3):
            assert bench.start()
        await bench.end("unreachable")
        assert bench.asked == [(3, "unreachable")] * CONNECTIONS, "the others were not sent"
        assert bench.events == ["otherwise"] * (CONNECTIONS + 3)
        assert not bench.start()
        assert bench.learn() == 1, "that was one failure"
        assert bench.start()

    on_bench(script)


def test_what_waits_is_begun_as_places_are_free() -> None:
    async def script(bench: Bench) -> None:
        await bench.ready()
        for _ in range(CONNECTIONS + 3):
            bench.start()
        process = bench.processes.last
        await until(lambda: process.take() and len(process.got) >= CONNECTIONS)
        assert len(process.got) == CONNECTIONS
        process.come(process.got[0])
        process.come(process.got[1])
        await until(lambda: process.take() and len(process.got) == CONNECTIONS + 2)

    on_bench(script)


@pytest.mark.parametrize("how", ["fails", "cannot", "unknown"])
def test_a_source_that_fails_is_tried_ever_less_often(how: str) -> None:
    async def script(bench: Bench) -> None:
        await bench.ready()
        await started(bench, "")
        bench.reads._ways.clear()
        bench.looks = 0
        bench.answers = how != "cannot"
        bench.refuses = how == "unknown"
        tried = []
        for number in range(3 * MOST_WAIT):
            if bench.learn():
                tried.append(number)
            if bench.start():
                await bench.end("origin-error")
        gaps = [later - before for before, later in itertools.pairwise(tried)]
        assert gaps == [1, 2, 4, 8, 16, 32, 64, 128, MOST_WAIT, MOST_WAIT]
        assert bench.looks == len(tried)

    on_bench(script)


async def started(bench: Bench, code: str) -> None:
    assert bench.start()
    await bench.end(code)


def test_one_that_comes_makes_up_for_failures() -> None:
    async def script(bench: Bench) -> None:
        await bench.ready()
        for _ in range(5):
            await started(bench, "unreachable")
            while not bench.learn():
                pass
        await started(bench, "")
        await started(bench, "unreachable")
        assert bench.learn() == 1

    on_bench(script)


def test_after_an_end_of_the_process_threads_read_until_there_is_another() -> None:
    async def script(bench: Bench) -> None:
        await bench.ready()
        await started(bench, "")
        bench.start()
        bench.processes.last.end()
        await until(lambda: bench.events[2:])
        assert bench.events == [CAME, None, "otherwise"]
        assert bench.asked == [(3, ""), (0, "interrupted")]
        assert not bench.start()
        assert [bench.learn() for _ in range(1000)] == [0] * 1000, "not at once"
        bench.now_s += RESTART_S
        assert bench.learn() == 1
        await ready(bench.reads._engine, bench.processes)
        await started(bench, "")
        assert len(bench.processes.started) == 2

    on_bench(script)


def test_an_end_while_nothing_is_under_way_is_noticed() -> None:
    async def script(bench: Bench) -> None:
        await bench.ready()
        bench.processes.last.end()
        await until(lambda: not bench.reads._engine.is_ready)
        assert not bench.reads.serves
        bench.now_s += RESTART_S
        assert bench.learn() == 1
        await ready(bench.reads._engine, bench.processes)
        assert bench.start()

    on_bench(script)


def test_an_end_while_a_file_is_made() -> None:
    async def script(bench: Bench) -> None:
        await bench.ready()
        bench.start()
        bench.processes.last.end()
        await until(lambda: not bench.reads._engine.is_ready)
        bench.disk.run()
        await until(lambda: bench.events)
        assert bench.events == ["otherwise"]
        assert bench.asked == []

    on_bench(script, on_disk=True)


def test_what_is_not_wanted_once_its_file_is_made_is_not_asked_for() -> None:
    async def script(bench: Bench) -> None:
        await bench.ready()
        bench.start()
        bench.left = True
        bench.disk.run()
        assert [type(one) for one in bench.events] == [Interrupted]
        assert bench.asked == []
        bench.left = False
        bench.start()
        bench.disk.run()
        await bench.end("")

    on_bench(script, on_disk=True)


def test_an_end_while_another_source_is_looked_at() -> None:
    async def script(bench: Bench) -> None:
        await bench.ready()
        bench.reads.learn(origin(2))
        ((look, args, done),) = bench.threads.calls
        bench.threads.calls.clear()
        asker = look(*args)
        assert asker is not None
        bench.processes.last.end()
        await until(lambda: bench.reads._engine._run is None)
        done(asker, None)
        bench.now_s += RESTART_S
        assert bench.learn(2) == 1, "not only in a minute"
        await ready(bench.reads._engine, bench.processes)
        assert bench.start(2)

    on_bench(script)


def test_who_fails_as_he_is_told_takes_no_place() -> None:
    async def script(bench: Bench) -> None:
        await bench.ready()
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        fault = ZeroDivisionError("nobody expected it")

        def fail(*_: object) -> None:
            raise fault

        small = Small(origin(1), bench.make_file, bench.check, bench.came, fail, fail)
        assert bench.reads.start(small)
        assert bench.start()
        await bench.end("")
        assert bench.events == [CAME, CAME, None]
        for _ in range(2):
            assert bench.reads.start(small)
            assert bench.start()
        bench.processes.last.end()
        await until(lambda: bench.events.count("otherwise") == 2)
        assert bench.reads._under_way == 0

    on_bench(script)


def test_a_process_that_cannot_be_started() -> None:
    async def script(bench: Bench) -> None:
        bench.processes.fault = OSError(11, "Resource temporarily unavailable")
        assert bench.learn() == 1
        assert not bench.start()
        bench.processes.fault = None
        bench.now_s += RESTART_S
        assert bench.learn() == 1
        await ready(bench.reads._engine, bench.processes)
        assert bench.start()

    on_bench(script)


def test_sources_are_bounded() -> None:
    async def script(bench: Bench) -> None:
        await bench.ready()
        for source in range(3 * MOST_SOURCES):
            bench.learn(source)
        assert bench.start(3 * MOST_SOURCES - 1)
        assert len(bench.reads._ways) <= MOST_SOURCES

    on_bench(script)
