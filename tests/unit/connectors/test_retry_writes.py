"""Writes that fail and may have happened: recognised, reported as doubtful, or never repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cachefs.core.errors import (
    AlreadyExists,
    DeadlineExceeded,
    NotFound,
    Stale,
    Unavailable,
    Unreachable,
    Unsupported,
)
from cachefs.core.model import Fingerprint
from connectors.base import Connector
from connectors.call_deadline import Deadline
from connectors.meter import Meter, Metered
from connectors.retry import Retry
from connectors.writing import ABSENT, ANY, Expectation, writer_of
from tests.services.memory import MemoryConnector
from tests.services.memory_writer import WritableMemory
from tests.services.processes import wait_until

DATA = memoryview(b"mine")


class LateFailure(WritableMemory):
    """Every write happens, and its reply is lost once. `between` happens after the write."""

    def __init__(self, memory: MemoryConnector, between: Callable[[], object] = list) -> None:
        super().__init__(memory)
        self.calls = 0
        self._between = between

    def _around(self, verb: str, act: Callable[[], Any]) -> Any:
        return self._lost(act)

    def _lost(self, act: Callable[[], Any]) -> Any:
        self.calls += 1
        result = act()
        if self.calls == 1:
            self._between()
            raise Unreachable("the reply was lost")
        return result

    def put(self, path: bytes, data: memoryview, expect: Expectation) -> Fingerprint:
        return self._lost(lambda: super(LateFailure, self).put(path, data, expect))  # type: ignore[no-any-return]

    def delete(self, path: bytes, expect: Expectation) -> None:
        self._lost(lambda: super(LateFailure, self).delete(path, expect))

    def mkdir(self, path: bytes, expect: Any) -> None:
        self._lost(lambda: super(LateFailure, self).mkdir(path, expect))

    def rename(self, source: bytes, target: bytes, expect: Expectation) -> None:
        self._lost(lambda: None)

    def stat(self, path: bytes) -> Any:
        return self.memory.stat(path)

    def read_all(self, path: bytes, version: Fingerprint) -> memoryview:
        return self.memory.read_all(path, version)


@pytest.fixture
def memory() -> MemoryConnector:
    return MemoryConnector({b"f": b"before"})


def retried(inner: Connector) -> Retry:
    return Retry(inner, deadline_s=60, sleep=lambda _: None, rng=lambda: 0.0)


def test_a_put_meets_its_own_file(memory: MemoryConnector) -> None:
    version = retried(LateFailure(memory)).put(b"new", DATA, ABSENT)
    assert version == memory.stat(b"new").fingerprint
    before = memory.stat(b"f").fingerprint
    replaced = retried(LateFailure(memory)).put(b"f", DATA, before)
    assert replaced == memory.stat(b"f").fingerprint != before


@pytest.mark.parametrize("data", [b"other", b"MINE"])
def test_a_put_meets_the_file_of_another(memory: MemoryConnector, data: bytes) -> None:
    """It may have been there for a moment: the error says so."""
    doubt = r"an earlier attempt of this call may have done it"
    source = retried(LateFailure(memory, lambda: memory.put(b"new", data)))
    with pytest.raises(AlreadyExists, match=doubt):
        source.put(b"new", DATA, ABSENT)
    before = memory.stat(b"f").fingerprint
    source = retried(LateFailure(memory, lambda: memory.put(b"f", data)))
    with pytest.raises(Stale, match=doubt):
        source.put(b"f", DATA, before)
    now = memory.stat(b"f").fingerprint
    with pytest.raises(NotFound, match=doubt):
        retried(LateFailure(memory, lambda: memory.delete(b"f"))).put(b"f", DATA, now)


def test_a_first_attempt_is_not_in_doubt(memory: MemoryConnector) -> None:
    memory.put(b"new", bytes(DATA))
    with pytest.raises(AlreadyExists) as caught:
        retried(WritableMemory(memory)).put(b"new", DATA, ABSENT)
    assert "earlier" not in caught.value.cause


def test_a_delete_finds_its_work_done(memory: MemoryConnector) -> None:
    retried(LateFailure(memory)).delete(b"f", memory.stat(b"f").fingerprint)
    with pytest.raises(NotFound):
        memory.stat(b"f")
    version = memory.put(b"f", b"1")
    again = LateFailure(memory, lambda: memory.put(b"f", b"of another"))
    with pytest.raises(Stale, match="earlier attempt"):
        retried(again).delete(b"f", version)


def test_a_directory_may_be_its_own(memory: MemoryConnector) -> None:
    with pytest.raises(AlreadyExists, match="earlier attempt"):
        retried(LateFailure(memory)).mkdir(b"d", ABSENT)
    retried(LateFailure(memory)).mkdir(b"e", ANY)


def test_a_rename_is_never_repeated(memory: MemoryConnector) -> None:
    inner = LateFailure(memory)
    with pytest.raises(Unreachable):
        retried(inner).rename(b"f", b"g", ANY)
    assert inner.calls == 1


def test_a_write_that_hangs_is_not_repeated(memory: MemoryConnector) -> None:
    """It may happen after the write of another attempt, and undo it."""
    guarded = Deadline(WritableMemory(memory), attempt_s=0.05)
    memory.block("put")
    with pytest.raises(DeadlineExceeded, match="may still happen"):
        retried(guarded).put(b"f", memoryview(b""), ANY)
    memory.unblock()
    wait_until(lambda: guarded._threads.lost == 0, "no lost thread")
    assert memory.calls["put"] == 1


def test_writes_are_counted(memory: MemoryConnector) -> None:
    meter = Meter()
    source = Metered(WritableMemory(memory), meter)
    source.put(b"g", DATA, ANY)
    source.mkdir(b"d", ANY)
    source.delete(b"g", ANY)
    memory.fail("put", b"g", Unavailable("busy"))
    with pytest.raises(Unavailable):
        source.put(b"g", DATA, ANY)
    found = meter.snapshot()
    assert found.requests == {"put": 2, "mkdir": 1, "delete": 1}
    assert found.errors == {"unavailable": 1}


def test_a_source_that_only_reads(memory: MemoryConnector) -> None:
    with pytest.raises(Unsupported, match="only reads"):
        writer_of(memory)
    with pytest.raises(Unsupported, match="only reads"):
        retried(memory).put(b"f", DATA, ANY)
