"""The connection that the threads of a process share."""

from __future__ import annotations

import socket
import threading
from types import TracebackType

import pytest

from cachefs.core import messages as m
from cachefs.core.errors import Unreachable
from cachefs.core.model import UfsSpec
from cachefs.library import node_session
from cachefs.library.node_session import NodeSession

THREADS = 8
LIMIT_S = 10.0


class Sink:
    """Takes no events."""

    def on_event(self, event: m.Message) -> None: ...
    def on_connecting(self) -> None: ...
    def on_attached(self, attached: m.Attached) -> None: ...


class SilentServer:
    """A server that is not there: each attempt takes until `may_fail`."""

    attach = m.Attach(UfsSpec("s3://bucket"))

    def __init__(self) -> None:
        self.attempts = 0
        self.may_fail = threading.Event()

    def check(self) -> None: ...

    def dial(self) -> socket.socket:
        self.attempts += 1
        assert self.may_fail.wait(LIMIT_S)
        raise Unreachable("nobody listens")


class CountedLock:
    """A lock that knows how many threads have come to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.came = threading.Semaphore(0)

    def __enter__(self) -> None:
        self.came.release()
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._lock.release()


def test_threads_share_the_failure_of_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one they would each wait as long as the first."""
    monkeypatch.setattr(node_session, "RECONNECT_WAIT_S", 0.0)
    server, lock = SilentServer(), CountedLock()
    session = NodeSession(server, Sink())
    session._connecting = lock  # type: ignore[assignment]
    failed: list[str] = []

    def use() -> None:
        try:
            session.catch_up()
        except Unreachable as err:
            failed.append(err.cause)

    threads = [threading.Thread(target=use) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert lock.came.acquire(timeout=LIMIT_S)
    server.may_fail.set()
    for thread in threads:
        thread.join(LIMIT_S)
    assert failed == ["nobody listens"] * THREADS
    assert server.attempts == 1
    use()
    assert server.attempts == 2, "a later call tries again"
