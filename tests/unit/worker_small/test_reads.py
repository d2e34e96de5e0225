"""Small files by the loop: which reads it takes, how each of them ends, and which are left to
threads."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pycurl
import pytest

from cachefs.core.errors import Interrupted
from cachefs.core.model import ContentId, NamespaceId, Origin
from connectors.fetch.request import (
    AT_ONCE,
    NOT_SENT,
    HttpRequest,
    NewConnections,
    RangeRequest,
)
from tests.services.small_origin import SmallOrigin
from tests.unit.worker.rig import LIMIT_S, run, until
from worker.fill.small import reads as module
from worker.fill.small.reads import IDLE_S, RECENT_S, RETRY_S, SmallFile, SmallReads
from worker.runtime.threads import LoopCallbackQueue

DATA = b"0123456789"


class Writers:
    """Threads of a disk that answers when a test says so."""

    def __init__(self) -> None:
        self._calls: list[tuple[Callable[..., Any], tuple[Any, ...], Callable[..., None]]] = []

    def submit(self, function: Callable[..., Any], *args: Any, done: Callable[..., None]) -> None:
        self._calls.append((function, args, done))

    def run(self) -> int:
        calls, self._calls = self._calls, []
        for function, args, done in calls:
            error: Exception | None = None
            try:
                function(*args)
            except Exception as err:  # noqa: BLE001
                error = err
            done(None, error)
        return len(calls)


class Bench:
    """Small reads of one origin, of which this is the source. `events`: what became of each
    file."""

    def __init__(self, server: SmallOrigin, writers: Writers | None) -> None:
        self.server = server
        self.writers = writers
        self.answers = True
        self.asked: list[tuple[int, str] | None] = []  # how each request ended
        self.made: list[NewConnections] = []
        self.events: list[Any] = []
        self.stored: list[bytes] = []
        self.refuses: Exception | None = None  # to store
        wake = LoopCallbackQueue(asyncio.get_running_loop())
        self.reads = SmallReads(self, writers, wake)  # type: ignore[arg-type]
        self.reads._loop = self  # type: ignore[assignment]
        self._loop = asyncio.get_running_loop()
        self._ahead_s = 0.0
        self._etag = server.connector.put(b"f", DATA).etag

    # ---- the loop, whose clock a test moves ----

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def time(self) -> float:
        return self._loop.time() + self._ahead_s

    def wait(self, seconds: float) -> None:
        self._ahead_s += seconds

    # ---- the source ----

    def ask(self, origin: Origin, offset: int, size: int) -> RangeRequest | None:
        if not self.answers:
            return None
        number = len(self.asked)
        self.asked.append(None)

        def ended(size_bytes: int, code: str) -> None:
            assert self.asked[number] is None, "reported twice"
            self.asked[number] = size_bytes, code

        url = f"http://127.0.0.1:{self.server.port}/f"
        get = HttpRequest(url, (), len(DATA), {pycurl.PROXY: ""}, (("etag", self._etag),))
        return RangeRequest(get, ended, self.made.append)

    # ---- reads ----

    def _store(self, body: memoryview) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.stored.append(bytes(body))

    def start(self) -> bool:
        return self.reads.start(
            SmallFile(
                ORIGIN,
                self._store,
                lambda _, error: self.events.append(error),
                lambda: self.events.append("otherwise"),
            )
        )

    def _wrote(self) -> bool:
        """Has the disk answer."""
        if self.writers is not None:
            self.writers.run()
        return True

    async def ended(self, count: int) -> None:
        await until(lambda: self._wrote() and len(self.events) >= count)

    async def one(self) -> Any:
        """The end of one more read."""
        assert self.start()
        await until(lambda: self._wrote() and not self.reads._in_flight)
        return self.events[-1]


ORIGIN = Origin(ContentId(NamespaceId(bytes(16)), 1, 1, 0), "u1", b"f", "e", len(DATA), 0)


@pytest.fixture
def server() -> Iterator[SmallOrigin]:
    with SmallOrigin() as made:
        yield made


@pytest.fixture(params=["memory", "disk"])
def writers(request: pytest.FixtureRequest) -> Writers | None:
    return Writers() if request.param == "disk" else None


def on_bench(
    server: SmallOrigin,
    script: Callable[[Bench], Awaitable[None]],
    writers: Writers | None = None,
) -> None:
    """No connection and no descriptor may be left."""

    async def whole() -> None:
        bench = Bench(server, writers)
        before = len(os.listdir("/proc/self/fd"))
        try:
            await script(bench)
        finally:
            server.go_on()
            bench.reads.close()
            await until(lambda: bench._wrote() and not bench.reads._in_flight)
            await until(lambda: server.connections == 0)
        assert None not in bench.asked, "each request has its end"
        await until(lambda: len(os.listdir("/proc/self/fd")) <= before)

    run(whole())


def test_what_arrives_is_stored(server: SmallOrigin, writers: Writers | None) -> None:
    async def script(bench: Bench) -> None:
        assert not bench.reads.serves
        for _ in range(3):
            assert await bench.one() is None
        assert bench.stored == [DATA] * 3
        assert bench.asked == [(len(DATA), "")] * 3
        assert bench.made == [NewConnections(1, 0)], "one connection, counted once"
        assert bench.reads.serves
        bench.wait(RECENT_S)
        assert not bench.reads.serves

    on_bench(server, script, writers)


def test_a_source_that_cannot_be_asked_opens_nothing(server: SmallOrigin) -> None:
    async def script(bench: Bench) -> None:
        bench.answers = False
        assert not bench.start()
        assert bench.reads._many is None

    on_bench(server, script)


@pytest.mark.parametrize("error", [Interrupted("the tier was left"), OSError(28, "full")])
def test_the_caller_gets_the_error_of_its_store(
    server: SmallOrigin, writers: Writers | None, error: Exception
) -> None:
    async def script(bench: Bench) -> None:
        bench.refuses = error
        assert await bench.one() is error
        assert bench.asked == [(len(DATA), "")]
        bench.refuses = None
        assert await bench.one() is None

    on_bench(server, script, writers)


@pytest.mark.parametrize("fault", ["404", "cut", "other-version"])
def test_what_does_not_arrive_is_left_to_others(server: SmallOrigin, fault: str) -> None:
    async def script(bench: Bench) -> None:
        server.fault(b"f", fault, times=2)  # libcurl retries on a kept connection
        assert await bench.one() == "otherwise"
        assert bench.asked[0] is not None
        assert bench.asked[0][1]
        assert bench.stored == []

    on_bench(server, script)


def test_no_more_are_in_flight_than_there_are_places(server: SmallOrigin) -> None:
    async def script(bench: Bench) -> None:
        server.hold()
        for _ in range(AT_ONCE):
            assert bench.start()
        assert not bench.start()
        assert len(bench.asked) == AT_ONCE
        server.go_on()
        await bench.ended(AT_ONCE)
        assert bench.events == [None] * AT_ONCE
        assert await bench.one() is None

    on_bench(server, script)


def test_a_caller_that_fails_keeps_nothing_from_others(server: SmallOrigin) -> None:
    async def script(bench: Bench) -> None:
        failures: list[BaseException] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: failures.append(context["exception"])
        )

        def fail(_: object, error: BaseException | None) -> None:
            raise ZeroDivisionError

        server.hold()
        assert bench.reads.start(SmallFile(ORIGIN, bench._store, fail, lambda: None))
        for _ in range(3):
            assert bench.start()
        server.go_on()
        await bench.ended(3)
        assert bench.events == [None] * 3
        await until(lambda: bool(failures))
        assert [type(failure) for failure in failures] == [ZeroDivisionError]

    on_bench(server, script)


def test_bodies_that_a_disk_does_not_take_bound_what_is_read(
    server: SmallOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their buffers are in use until they are stored."""
    monkeypatch.setattr("connectors.fetch.batch_reader.ROOM_BYTES", 4 * (32 << 10))
    writers = Writers()

    async def script(bench: Bench) -> None:
        for _ in range(10):
            assert bench.start()
        await until(lambda: len(server.served) == 4)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(server.served) == 4
        await bench.ended(10)
        assert bench.events == [None] * 10

    on_bench(server, script, writers)


def test_idle_connections_are_closed(server: SmallOrigin) -> None:
    async def script(bench: Bench) -> None:
        assert await bench.one() is None
        bench.reads.look()
        assert server.connections == 1
        bench.wait(IDLE_S)
        bench.reads.look()
        await until(lambda: server.connections == 0)
        assert await bench.one() is None

    on_bench(server, script)


def test_where_no_descriptor_is_left(server: SmallOrigin, monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(bench: Bench) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(module, "BatchReader", fail)
            assert not bench.start()
            assert bench.asked == [(0, NOT_SENT)]
        assert not bench.start(), "not again at once"
        bench.wait(RETRY_S)
        assert await bench.one() is None

    def fail() -> None:
        raise OSError(24, "Too many open files")

    on_bench(server, script)


def test_the_close_ends_reads_and_takes_no_more(server: SmallOrigin) -> None:
    async def script(bench: Bench) -> None:
        server.hold()
        assert bench.start()
        await asyncio.to_thread(server.wait_held, 1)
        bench.reads.close()
        await bench.ended(1)
        assert bench.events == ["otherwise"]
        assert bench.stored == []
        assert not bench.start()

    on_bench(server, script)


def test_a_body_that_is_being_stored_at_the_close_is_told_of(server: SmallOrigin) -> None:
    writers = Writers()

    async def script(bench: Bench) -> None:
        assert bench.start()
        await until(lambda: bool(writers._calls))
        bench.reads.close()
        assert writers.run() == 1
        await bench.ended(1)
        assert bench.events == [None]

    on_bench(server, script, writers)


def test_an_origin_that_is_silent_is_given_up(
    server: SmallOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libcurl's own deadline ends the read: a turn is taken then, though no byte arrives."""
    monkeypatch.setattr("connectors.fetch.batch_reader.LIMIT_S", 0.2)

    async def script(bench: Bench) -> None:
        server.hold()
        async with asyncio.timeout(LIMIT_S):
            assert await bench.one() == "otherwise"

    on_bench(server, script)
