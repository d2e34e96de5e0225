"""What is learned of sources for small files, for how long, and what one failure costs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from cachefs.core.errors import NotFound
from cachefs.core.model import ContentId, NamespaceId, Origin
from connectors.base import Ask
from worker.small import KEPT_S, MOST_SOURCES, MOST_UNWRITTEN_BYTES, MOST_WAIT, SmallReads
from worker.source import Asker, SourceBody

ASK = Ask((2, ("127.0.0.1", 9)), b"GET secret", 3, lambda status, headers: True, lambda *_: None)
BODY = b"abc"


class Held:
    """Calls that threads would run, held until a test says so; as the loop, runs them at once."""

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[..., Any], tuple[Any, ...], Callable[..., None]]] = []

    def call(self, function: Callable[..., None], *args: Any) -> None:
        function(*args)

    def submit(self, function: Callable[..., Any], *args: Any, done: Callable[..., None]) -> None:
        self.calls.append((function, args, done))

    def run(self) -> int:
        calls, self.calls = self.calls, []
        for function, args, done in calls:
            try:
                done(function(*args), None)
            except OSError as err:
                done(None, err)
        return len(calls)


class FakeStreams:
    """Reads that were started, as (prepare, taken)."""

    def __init__(self) -> None:
        self.reads: list[tuple[Callable[[], Ask | None], Callable[[memoryview | None], None]]] = []

    def start(
        self, prepare: Callable[[], Ask | None], taken: Callable[[memoryview | None], None]
    ) -> bool:
        self.reads.append((prepare, taken))
        return True

    def end(self, body: bytes | None) -> list[Ask | None]:
        """All of them come to this; what they asked for."""
        reads, self.reads = self.reads, []
        asked = []
        for prepare, taken in reads:
            asked.append(prepare())
            taken(memoryview(body) if body is not None and asked[-1] is not None else None)
        return asked


class Bench:
    """Small reads without threads; `events`: what became of them. It is its own source."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, on_disk: bool = False) -> None:
        monkeypatch.setattr("worker.small.Streams", lambda name: self.streams)
        self.streams = FakeStreams()
        self.now_s = 1000.0
        self.threads, self.disk = Held(), Held()
        self.looks = 0
        self.answer: Ask | None = ASK
        self.refuses = False
        self.events: list[Any] = []
        self.fault: OSError | None = None
        self.reads = SmallReads(
            self,  # type: ignore[arg-type]
            Held(),  # type: ignore[arg-type]
            self.threads,  # type: ignore[arg-type]
            self.disk if on_disk else None,  # type: ignore[arg-type]
            lambda: self.now_s,
        )

    def asker(self, origin: Origin) -> Asker | None:
        self.looks += 1
        if self.refuses:
            raise NotFound("no such source")
        return (lambda one: self.answer) if self.answer is not None else None

    def store(self, body: SourceBody) -> None:
        if self.fault is not None:
            raise self.fault
        self.events.append(b"".join(body))

    def start(self, source: int = 1) -> bool:
        return self.reads.start(
            origin(source),
            self.store,
            lambda _, error: self.events.append(error),
            lambda *_: self.events.append("otherwise"),
        )

    def learn(self, source: int = 1) -> int:
        """How many looks at sources this caused."""
        self.reads.learn(origin(source))
        return self.threads.run()


def origin(source: int) -> Origin:
    content = ContentId(NamespaceId(bytes(16)), 1, 1, 0)
    return Origin(content, f"u{source}", b"f", "e", 3, 0)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_a_source_is_looked_at_once_and_again_after_a_while(bench: Bench) -> None:
    assert not bench.start()
    bench.reads.learn(origin(1))
    bench.reads.learn(origin(1))
    assert not bench.start(), "one is just looking"
    assert bench.threads.run() == 1
    assert bench.start()
    assert not bench.start(2), "another source"
    bench.now_s += KEPT_S
    assert bench.learn() == 0
    assert bench.start()
    bench.now_s += 1
    assert not bench.start()
    assert bench.learn() == 1
    assert bench.start()


def test_what_comes_is_stored_and_told(bench: Bench) -> None:
    bench.learn()
    bench.start()
    assert bench.streams.end(BODY) == [ASK]
    assert bench.events == [BODY, None]
    bench.fault = OSError(28, "full")
    bench.start()
    bench.streams.end(BODY)
    assert bench.events == [BODY, None, bench.fault]


def test_what_does_not_come_is_left_to_others_with_what_waits_behind_it(bench: Bench) -> None:
    bench.learn()
    for _ in range(3):
        bench.start()
    assert bench.streams.end(None) == [ASK, None, None], "the others were not sent"
    assert bench.events == ["otherwise"] * 3
    assert not bench.start()
    assert bench.learn() == 1, "that was one failure"
    assert bench.start()


@pytest.mark.parametrize("how", ["fails", "cannot", "unknown"])
def test_a_source_that_fails_is_tried_ever_less_often(bench: Bench, how: str) -> None:
    if how == "cannot":
        bench.answer = None
    bench.refuses = how == "unknown"
    tried = []
    for number in range(3 * MOST_WAIT):
        if bench.learn():
            tried.append(number)
        if bench.start():
            bench.streams.end(None)
    gaps = [later - before for before, later in itertools.pairwise(tried)]
    assert gaps == [1, 2, 4, 8, 16, 32, 64, 128, MOST_WAIT, MOST_WAIT]
    assert bench.looks == len(tried)


def test_one_that_comes_makes_up_for_failures(bench: Bench) -> None:
    for _ in range(5):
        while not bench.learn():
            pass
        bench.start()
        bench.streams.end(None)
    while not bench.learn():
        pass
    bench.start()
    bench.streams.end(BODY)
    bench.start()
    bench.streams.end(None)
    assert bench.learn() == 1


def test_bodies_that_wait_for_the_disk_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, on_disk=True)
    body = bytes(1 << 20)
    bench.learn()
    count = 0
    while bench.start():
        bench.streams.end(body)
        count += 1
    assert count == MOST_UNWRITTEN_BYTES // len(body) + 1
    assert bench.events == [], "nothing was written"
    bench.fault = OSError(5, "the disk fails")
    assert bench.disk.run() == count
    assert bench.events == [bench.fault] * count
    assert bench.start()


def test_sources_are_bounded(bench: Bench) -> None:
    for source in range(3 * MOST_SOURCES):
        bench.learn(source)
        assert bench.start(source)
    assert len(bench.reads._ways) <= MOST_SOURCES


def test_a_request_shows_no_signature() -> None:
    assert "secret" not in repr(ASK)
