"""Limits and counts."""

from __future__ import annotations

import threading

import pytest

from cachefs.core.errors import BadBody, DeadlineExceeded, Throttled
from cachefs.core.model import Fingerprint, Kind
from connectors.compose import decorate
from connectors.fetch.request import HttpRequest, RangeRequest
from connectors.limit import Limit
from connectors.meter import Meter, Metered
from tests.services.memory import MemoryConnector

BIG = b"b" * (3 << 20)


@pytest.fixture
def memory() -> MemoryConnector:
    return MemoryConnector({b"f": b"123", b"big": BIG})


def test_no_more_requests_than_places(memory: MemoryConnector) -> None:
    source = Limit(memory, in_flight=2, wait_limit_s=0.01)
    version = memory.stat(b"big").fingerprint
    first = source.read(b"big", 0, len(BIG), version)
    second = source.read(b"big", 0, len(BIG), version)
    with pytest.raises(DeadlineExceeded):
        source.check()
    first.close()
    first.close()
    source.check()
    assert len(list(second)) == 3
    source.check()


def test_a_place_is_given_back_after_a_failure(memory: MemoryConnector) -> None:
    source = Limit(memory, in_flight=1, wait_limit_s=0.01)
    version = memory.stat(b"big").fingerprint
    memory.fail("read", b"big", Throttled("slow down"))
    with pytest.raises(Throttled):
        source.read(b"big", 0, 1, version)
    memory.cut(b"big", 10)
    with pytest.raises(BadBody):
        list(source.read(b"big", 0, 100, version))
    memory.fail("list_dir", b"", Throttled("slow down"))
    with pytest.raises(Throttled):
        list(source.list_dir(b""))
    body = source.read(b"big", 0, 1, version)
    del body  # dropped and not closed
    source.check()


def test_a_waiting_request_goes_on_when_a_place_is_free(memory: MemoryConnector) -> None:
    source = Limit(memory, in_flight=1, wait_limit_s=10)
    memory.block("check")
    threads = [threading.Thread(target=source.check) for _ in range(3)]
    for thread in threads:
        thread.start()
    memory.wait_blocked("check")
    assert memory.calls["check"] == 1
    memory.unblock()
    for thread in threads:
        thread.join(10)
    assert memory.calls["check"] == 3


def test_the_meter_counts_by_verb(memory: MemoryConnector) -> None:
    ticks = iter(range(1000))
    meter = Meter()
    source = Metered(memory, meter, clock=lambda: float(next(ticks)))
    source.check()
    version = source.stat(b"big").fingerprint
    memory.put(b"f/g", b"")
    list(source.list_dir(b""))
    list(source.read(b"big", 0, len(BIG), version))
    memory.fail("stat", b"f", Throttled("slow down"))
    with pytest.raises(Throttled):
        source.stat(b"f")
    memory.cut(b"big", 10)
    with pytest.raises(BadBody):
        list(source.read(b"big", 0, 100, version))
    found = meter.snapshot()
    assert found.requests == {"check": 1, "stat": 2, "list_dir": 1, "read": 2}
    assert found.errors == {"throttled": 1, "bad-body": 1}
    assert found.body_bytes == len(BIG) + 10
    assert found.hidden_keys == 1
    assert found.seconds["check"] == 1.0
    assert found.seconds["stat"] == 2.0


def test_one_meter_over_retries(memory: MemoryConnector) -> None:
    meter = Meter()
    memory.fail("check", None, Throttled("slow down"), times=2)
    decorate(memory, deadline_s=10, meter=meter, sleep=lambda _s: None, rng=lambda: 0.1).check()
    assert meter.snapshot().requests == {"check": 3}
    assert meter.snapshot().errors == {"throttled": 2}


class Asked(MemoryConnector):
    """One that lets files be asked for; `told`: how reads ended."""

    def __init__(self) -> None:
        super().__init__({b"f": b"123"})
        self.told: list[tuple[int, str]] = []

    def ask(self, path: bytes, offset: int, size: int, version: Fingerprint) -> RangeRequest | None:
        if path == b"bad":
            raise ZeroDivisionError("nobody expected it")
        if path != b"f":
            return None
        return RangeRequest(HttpRequest("http://127.0.0.1:9", (), version.size, {}), self._end)

    def _end(self, size_bytes: int, error: str) -> None:
        self.told.append((size_bytes, error))


FILE = Fingerprint(Kind.FILE, 3, 0, "e")


def test_what_is_asked_for_has_a_place_until_it_ends() -> None:
    source = Limit(asked := Asked(), in_flight=2, wait_limit_s=0.01)
    ask = source.ask
    first, second = ask(b"f", 0, FILE.size, FILE), ask(b"f", 0, FILE.size, FILE)
    assert first is not None
    assert second is not None
    assert ask(b"f", 0, FILE.size, FILE) is None
    with pytest.raises(DeadlineExceeded):
        source.check()
    first.ended(3, "")
    source.check()
    assert ask(b"f", 0, FILE.size, FILE) is not None
    second.ended(1, "unreachable")
    source.check()
    assert asked.told == [(3, ""), (1, "unreachable")]


def test_a_place_that_is_returned_twice_is_an_error() -> None:
    """The limit stays what it is."""
    source = Limit(Asked(), in_flight=1, wait_limit_s=0.01)
    one = source.ask(b"f", 0, FILE.size, FILE)
    assert one is not None
    one.ended(3, "")
    with pytest.raises(ValueError, match="returned twice"):
        one.ended(3, "")
    assert source.ask(b"f", 0, FILE.size, FILE) is not None
    assert source.ask(b"f", 0, FILE.size, FILE) is None


def test_what_is_not_asked_for_leaves_its_place() -> None:
    ask = (source := Limit(Asked(), in_flight=1, wait_limit_s=0.01)).ask
    for _ in range(3):
        assert ask(b"other", 0, FILE.size, FILE) is None
        with pytest.raises(ZeroDivisionError):
            ask(b"bad", 0, FILE.size, FILE)
    source.check()


def test_what_cannot_be_asked_for_is_not(memory: MemoryConnector) -> None:
    assert decorate(memory, deadline_s=1, meter=Meter()).ask(b"f", 0, FILE.size, FILE) is None


def test_the_meter_counts_what_is_asked_for() -> None:
    ticks = iter(range(0, 1000, 2))
    source = Metered(asked := Asked(), meter := Meter(), clock=lambda: float(next(ticks)))
    ask = source.ask
    assert ask(b"other", 0, FILE.size, FILE) is None
    assert meter.snapshot().requests == {}
    for size_bytes, error in [(3, ""), (1, "unreachable")]:
        one = ask(b"f", 0, FILE.size, FILE)
        assert one is not None
        one.ended(size_bytes, error)
    found = meter.snapshot()
    assert found.requests == {"read": 2}
    assert found.seconds == {"read": 4.0}
    assert found.body_bytes == 4
    assert found.errors == {"unreachable": 1}
    assert asked.told == [(3, ""), (1, "unreachable")]
