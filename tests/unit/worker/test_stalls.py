"""Transfers that bring nothing: their pages fail while the thread is still in the request, and the
next reader's request is a new one."""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cachefs.core.errors import CacheFSError, Unavailable, Unreachable
from cachefs.core.model import PAGE_BYTES, Origin
from connectors.deadline import NEVER_S, until
from tests.services.loading import fetch
from tests.services.memory import MemoryConnector
from tests.unit.worker import rig
from tests.unit.worker.rig import NAMESPACE, Rig, only, run
from tests.unit.worker_tiers.rig import come_back, leave
from worker.cache.cache import Cache
from worker.fill import attempts
from worker.fill.segments import MOST_FILLING
from worker.fill.source import OriginBody, OriginSource, Purpose, SourceBody
from worker.fill.stalls import GRACE_S, MOST_STUCK, PAGE_LIMIT_S
from worker.fill.transfer import Transfer

DEADLINE_S = 5.0


class Stalling(OriginSource):
    """The first body waits for `go_on`, even when it is closed."""

    def __init__(self, origin: MemoryConnector) -> None:
        super().__init__(lambda namespace, key: origin)
        self.go_on = threading.Event()
        self.stalled = threading.Event()
        self.until_s: list[float] = []

    def read(
        self, origin: Origin, offset: int, size: int, purpose: Purpose = Purpose.READ
    ) -> SourceBody:
        self.until_s.append(until())
        body = super().read(origin, offset, size, purpose)
        return body if self.stalled.is_set() else OriginBody(_Slow(body, self))


class _Slow:
    def __init__(self, body: SourceBody, source: Stalling) -> None:
        self._body = body
        self._source = source

    def __iter__(self) -> Iterator[memoryview]:
        self._source.stalled.set()
        assert self._source.go_on.wait(60)
        yield from self._body

    def close(self) -> None:
        self._body.close()


@pytest.mark.parametrize("is_small", [False, True])
def test_pages_that_do_not_come_fail_and_are_asked_for_anew(tmp_path: Path, is_small: bool) -> None:
    made = Rig(tmp_path, 64 << 20, origin_deadline_s=DEADLINE_S)
    ino = made.put(1, 300_000 if is_small else 6 * PAGE_BYTES)
    source = Stalling(made.origin)

    async def script() -> None:
        async with made.worker(source) as worker:
            reading = asyncio.create_task(rig.read(worker, ino))
            await rig.until(source.stalled.is_set)
            _look(worker, PAGE_LIMIT_S)
            await asyncio.sleep(0)
            assert not reading.done()  # too early
            _look(worker, PAGE_LIMIT_S + 2 * GRACE_S)
            with pytest.raises(Unreachable):
                await reading
            (failing,) = worker.status()["origins"]
            assert failing["down_code"] == "unreachable"
            assert await rig.read(worker, ino) == made.data[ino]
            assert worker.status()["origins"] == [], "its bytes have arrived"
            source.go_on.set()

    try:
        run(script())
    finally:
        source.go_on.set()
    now = time.monotonic()
    assert all(one < now + DEADLINE_S for one in source.until_s)
    assert until() == NEVER_S


class _Hung(OriginSource):
    """Every body of a file of one UFS waits for `go_on`."""

    def __init__(self, origin: MemoryConnector) -> None:
        super().__init__(lambda namespace, key: origin)
        self.go_on = threading.Event()
        self.stalled = threading.Event()
        self.hung = 0

    def read(
        self, origin: Origin, offset: int, size: int, purpose: Purpose = Purpose.READ
    ) -> SourceBody:
        body = super().read(origin, offset, size, purpose)
        if origin.ufs != "hung":
            return body
        self.hung += 1
        return OriginBody(_Slow(body, self))


def _let_hang(made: Rig, inos: list[int]) -> None:
    """Moves files to a source that hangs."""
    for ino in inos:
        made.space.origins[ino] = msgspec.structs.replace(made.space.origins[ino], ufs="hung")


def test_a_source_that_hangs_does_not_take_the_threads_of_others(tmp_path: Path) -> None:
    """Its readers ask again and again. They get an error at once when enough threads are stuck,
    fills that were given up take no room, and readers of another source go on. The buffers of stuck
    threads stay counted: the threads hold them."""
    made = Rig(tmp_path, 64 << 20, fetch_threads=2 * MOST_STUCK, ask_threads=2, load_threads=2)
    hung = [made.put(number, 300_000) for number in range(1, 2 * MOST_STUCK + 1)]
    _let_hang(made, hung)
    good = made.put(1000, 300_000)
    source = _Hung(made.origin)

    async def script() -> None:
        async with made.worker(source) as worker:
            one = only(worker)
            reading = [asyncio.create_task(rig.read(worker, ino)) for ino in hung[:MOST_STUCK]]
            await rig.until(lambda: source.hung == MOST_STUCK)
            await asyncio.sleep(0)
            _look(worker, PAGE_LIMIT_S + 2 * GRACE_S)
            for ended in await asyncio.gather(*reading, return_exceptions=True):
                assert isinstance(ended, Unreachable)
            assert one.context.counters.fills_in_flight == 0
            assert one.contents.ledger.reserved_bytes == 0
            assert one.context.memory.buffers_bytes == MOST_STUCK * 300_000
            for ino in hung:
                with pytest.raises(Unreachable, match="hang"):
                    await rig.read(worker, ino)
            assert source.hung == MOST_STUCK
            assert await rig.read(worker, good) == made.data[good]
            source.go_on.set()
            await rig.until(lambda: not only(worker)._filler._running)
            assert one.context.memory.buffers_bytes == 0
            for ino in hung:
                assert await rig.read(worker, ino) == made.data[ino]

    try:
        run(script())
    finally:
        source.go_on.set()


def test_many_reads_of_a_source_that_is_silent_leave_threads_to_others(tmp_path: Path) -> None:
    """Long before they count as stuck, and although more of them wait than there are threads."""
    made = Rig(tmp_path, 64 << 20, fetch_threads=4, ask_threads=4, load_threads=4)
    hung = [made.put(number, 300_000) for number in range(1, 11)]
    _let_hang(made, hung)
    good = made.put(1000, 300_000)
    source = _Hung(made.origin)

    async def script() -> None:
        async with made.worker(source) as worker:
            reading = [asyncio.create_task(rig.read(worker, ino)) for ino in hung]
            await rig.until(lambda: len(only(worker)._filler._running) == len(hung))
            await rig.until(lambda: source.hung == 3)
            assert await rig.read(worker, good) == made.data[good]
            assert source.hung == 3
            assert not any(one.done() for one in reading)
            source.go_on.set()
            assert await asyncio.gather(*reading) == [made.data[ino] for ino in hung]
            assert not only(worker)._supply.fetchers._later

    try:
        run(script())
    finally:
        source.go_on.set()


def test_loads_of_a_source_that_hangs_fail_and_those_of_others_go_on(tmp_path: Path) -> None:
    """Small files, and pieces of a large one, take all threads that loads may take."""
    made = Rig(tmp_path, 64 << 20, fetch_threads=4, ask_threads=2, load_threads=4)
    hung = [*(made.put(ino, 300_000) for ino in range(1, 4)), made.put(4, 20 * PAGE_BYTES)]
    _let_hang(made, hung)
    good = [made.put(1000, 300_000), made.put(1001, 3 * PAGE_BYTES)]
    source = _Hung(made.origin)

    async def script() -> None:
        async with made.worker(source) as worker:
            loading = [asyncio.create_task(fetch(worker, NAMESPACE, ino)) for ino in hung]
            await rig.until(lambda: source.hung == 3 + 3)
            others = [asyncio.create_task(fetch(worker, NAMESPACE, ino)) for ino in good]
            await asyncio.sleep(0)
            _look(worker, PAGE_LIMIT_S + 2 * GRACE_S)
            for ended in await asyncio.gather(*loading, return_exceptions=True):
                assert isinstance(ended, Unreachable)
            await asyncio.gather(*others)
            assert made.published() == {made.name(ino) for ino in good}
            source.go_on.set()
            await rig.recorded(worker)
            assert only(worker).contents.ledger.reserved_bytes == 0

    try:
        run(script())
    finally:
        source.go_on.set()


def test_a_load_into_a_tier_that_is_lost_ends(tmp_path: Path) -> None:
    """Its thread is in a request, and may be in one for ever."""
    made = Rig(tmp_path, 64 << 20)
    inos = [made.put(1, 300_000), made.put(2, 20 * PAGE_BYTES)]
    source = Stalling(made.origin)

    async def script() -> None:
        async with made.worker(source) as worker:
            loading = [asyncio.create_task(fetch(worker, NAMESPACE, ino)) for ino in inos]
            await rig.until(source.stalled.is_set)
            leave(only(worker))
            for ended in await asyncio.gather(*loading, return_exceptions=True):
                assert isinstance(ended, Unavailable)
            assert only(worker)._filler._running, "a thread is in its request"
            assert only(worker)._filler._background == 0, "others may be read ahead"
            assert only(worker).context.counters.fills_in_flight == 0
            source.go_on.set()
            come_back(only(worker))
            await rig.recorded(worker)
            for ino in inos:
                assert await rig.read(worker, ino) == made.data[ino]

    try:
        run(script())
    finally:
        source.go_on.set()


def test_a_fill_that_is_given_up_between_two_requests_sends_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is left in the pause: the thread of another request would hang there."""
    made = Rig(tmp_path, 64 << 20)
    ino = made.put(1, 300_000)
    made.origin.script.fail("read", None, Unreachable("the body broke off"))

    async def script() -> None:
        async with made.worker() as worker:

            def pause_s(*_: object, **__: object) -> float:
                asyncio.get_running_loop().call_soon(leave, only(worker))
                return 0.0

            monkeypatch.setattr(attempts, "pause_s", pause_s)
            with pytest.raises(Unavailable):
                await fetch(worker, NAMESPACE, ino)
            await rig.until(lambda: not only(worker)._filler._pieces)
            assert made.origin.script.calls["read"] == 1
            come_back(only(worker))

    run(script())


class _Broken(OriginSource):
    """Raises what no connector should."""

    def __init__(self, origin: MemoryConnector) -> None:
        super().__init__(lambda namespace, key: origin)
        self.calls = 0

    def read(
        self, origin: Origin, offset: int, size: int, purpose: Purpose = Purpose.READ
    ) -> SourceBody:
        self.calls += 1
        raise ZeroDivisionError


@pytest.mark.parametrize("is_small", [False, True])
def test_a_bug_of_a_source_is_an_error_at_once(tmp_path: Path, is_small: bool) -> None:
    """[S-errors] Of one request: it was taken for a lack of room, after 64 of them."""
    made = Rig(tmp_path, 64 << 20)
    ino = made.put(1, 300_000 if is_small else 20 * PAGE_BYTES)
    source, logged = _Broken(made.origin), list[object]()

    async def script() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: logged.append(context["exception"]))
        async with made.worker(source) as worker:
            with pytest.raises(CacheFSError, match="internal error: ZeroDivisionError") as caught:
                await rig.read(worker, ino)
            assert caught.value.errno == errno.EIO

    run(script())
    assert source.calls == 1
    assert [type(one) for one in logged] == [ZeroDivisionError]


def test_a_segment_that_was_given_up_has_no_place_among_those_that_are_filled(
    tmp_path: Path,
) -> None:
    made = Rig(tmp_path, 64 << 20)

    async def script() -> None:
        async with made.worker() as worker:
            segments, key = only(worker)._segments, b"k" * 36
            filling = [
                await segments.make(key, MOST_FILLING * PAGE_BYTES, (page, page + 1), wait_s=5.0)
                for page in range(MOST_FILLING // 2)
            ]
            assert segments._filling == len(filling)
            for one in filling:
                segments.given_up(one)
            assert segments._filling == 0
            assert segments.bits(key, 0, MOST_FILLING) == 0
            taken_bytes = only(worker).contents.ledger.scratch_bytes
            assert taken_bytes == len(filling) * PAGE_BYTES  # their threads may still write
            for one in filling:
                segments.filled(one)
            assert segments._filling == only(worker).contents.ledger.scratch_bytes == 0

    run(script())


def test_a_fill_that_was_given_up_asks_no_more(tmp_path: Path) -> None:
    made = Rig(tmp_path, 64 << 20, origin_deadline_s=DEADLINE_S)
    ino = made.put(1, 6 * PAGE_BYTES)
    source = Stalling(made.origin)

    async def script() -> None:
        async with made.worker(source) as worker:
            reading = asyncio.create_task(rig.read(worker, ino))
            await rig.until(source.stalled.is_set)
            _look(worker, PAGE_LIMIT_S + 2 * GRACE_S)
            with pytest.raises(Unreachable):
                await reading
            asked = len(source.until_s)
            source.go_on.set()
            await rig.until(lambda: not only(worker)._filler._pieces)
            assert len(source.until_s) == asked

    try:
        run(script())
    finally:
        source.go_on.set()


def test_the_time_in_the_queue_for_a_thread_is_not_the_silence_of_the_origin(
    tmp_path: Path,
) -> None:
    """The one thread is busy for longer than the deadline; the request behind it gets all of it."""
    made = Rig(
        tmp_path, 64 << 20, origin_deadline_s=0.5, fetch_threads=1, ask_threads=1, load_threads=1
    )
    first, second = made.put(1, 300_000), made.put(2, 300_000)
    source = Stalling(made.origin)

    async def script() -> None:
        async with made.worker(source) as worker:
            one = asyncio.create_task(rig.read(worker, first))
            await rig.until(source.stalled.is_set)
            two = asyncio.create_task(rig.read(worker, second))
            await rig.until(lambda: len(only(worker)._filler._running) == 2)
            began_s = time.monotonic()
            await rig.until(lambda: time.monotonic() > began_s + 0.6)
            released_s = time.monotonic()
            source.go_on.set()
            assert await one == made.data[first]
            assert await two == made.data[second]
            assert source.until_s[-1] >= released_s + 0.5

    try:
        run(script())
    finally:
        source.go_on.set()


def _ignore(*_: object) -> None:
    pass


def test_a_cut_does_not_wait_for_the_body_to_close(tmp_path: Path) -> None:
    made = Rig(tmp_path, 64 << 20)
    ino = made.put(1, 300_000)
    source = _Holding(made.origin)
    transfer = Transfer(made.space.origins[ino], 0, 1, 0, _ignore, _ignore)
    ended: list[BaseException] = []

    def work() -> None:
        try:
            transfer.run(source, -1)
        except Unreachable as err:
            ended.append(err)

    running = threading.Thread(target=work, daemon=True)
    running.start()
    assert source.stalled.wait(60)
    cutting = threading.Thread(target=transfer.cut, args=(Unreachable("silent"),), daemon=True)
    cutting.start()
    cutting.join(10)
    try:
        assert not cutting.is_alive()
    finally:
        source.go_on.set()
    running.join(60)
    assert [error.cause for error in ended if isinstance(error, Unreachable)] == ["silent"]


class _Holding(Stalling):
    """A body whose close waits for `go_on`, too."""

    def read(
        self, origin: Origin, offset: int, size: int, purpose: Purpose = Purpose.READ
    ) -> SourceBody:
        return OriginBody(_Held(super().read(origin, offset, size, purpose), self))


class _Held(_Slow):
    def close(self) -> None:
        assert self._source.go_on.wait(60)
        super().close()


def _look(worker: Cache, later_s: float) -> None:
    """Looks at what stalls, as at a later time."""
    only(worker)._filler.give_up_stalled(time.monotonic() + later_s)
