"""The client of one HDFS: hdfs-native's, made at the first call, with a deadline for every call.

Its blocking calls run in the caller's thread and release the GIL. Reads of its `AsyncClient`, which
can be cancelled, cost twice the CPU per small file (`bench/hdfs.py`). The library has no time-out
for a NameNode: `Deadlines` ends the connections to one that is silent. A DataNode that sends
nothing for `DATANODE_IDLE_MS` is given up by the library for the next replica.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from hdfs_native import Client

from cachefs.core.errors import CacheFSError, DeadlineExceeded, Unreachable
from connectors.call_threads import start_thread
from connectors.deadline import until
from connectors.hdfs.connections import Address, end_connections, resolve
from connectors.hdfs.deadlines import AGAIN_S, Deadlines, TimedCall
from connectors.hdfs.errors import classify
from connectors.hdfs.name_services import default_conf_dir, find_name_nodes, read_configuration
from connectors.hdfs.options import HdfsOptions
from connectors.hdfs.user import assume_user

T = TypeVar("T")
CALL_S: Final = 8.0  # of one call to the NameNode, or of the read of one piece
LEAST_S: Final = 0.1
# A silent DataNode costs three of these at most: two kept connections and a new one.
DATANODE_IDLE_MS: Final = 2000
PANIC: Final = "PanicException"  # of the library: a BaseException that no module exports


class NoAnswer(Unreachable):
    """Raised where HDFS is silent for `CALL_S`. It was long enough: another attempt would only keep
    the caller."""

    retryable = False


class HdfsClient:
    """Calls of one HDFS. Thread-safe."""

    def __init__(self, authority: str, options: HdfsOptions) -> None:
        """`authority` is `host:port`, a name service or a host. Sends nothing. Raises BadConfig."""
        assume_user(options.user)
        self._conf_dir = options.conf_dir or default_conf_dir()
        self._name_nodes = find_name_nodes(authority, read_configuration(self._conf_dir))
        self._addresses: frozenset[Address] = frozenset()
        self._is_resolved = False
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._deadlines = Deadlines(self._end_connections)
        self._resolving: threading.Thread | None = None

    def call(self, path: str, act: Callable[[Client], T], limit_s: float = CALL_S) -> T:
        """Returns what `act` returns, which may run more than once. Raises the typed error of a
        failure, about `path`: NoAnswer where HDFS is silent for `CALL_S`, and DeadlineExceeded
        where it is silent for a shorter `limit_s`."""
        began_s = time.monotonic()
        limit_s = max(LEAST_S, min(limit_s, until() - began_s))
        if not self._is_resolved:
            self._resolve(path, began_s, limit_s)
        timed = self._deadlines.begin(began_s + limit_s - time.monotonic())
        try:
            while True:
                try:
                    return act(self._client or self._open())
                except CacheFSError:
                    raise
                except BaseException as error:
                    if not isinstance(error, Exception) and type(error).__name__ != PANIC:
                        raise
                    is_reply = isinstance(error, FileNotFoundError | PermissionError)
                    if is_reply or not self._deadlines.may_try_again(timed):
                        raise self._failure(error, path, timed, limit_s) from error
                    time.sleep(AGAIN_S)
        finally:
            self._deadlines.end(timed)

    def close(self) -> None:
        """Drops the library's client, whose connections end with its last call. Idempotent."""
        with self._lock:
            self._client = None
        self._deadlines.close()

    def _open(self) -> Client:
        settings = {
            "dfs.client.failover.max.attempts": str(len(self._name_nodes.hosts) - 1),
            "dfs.client.failover.sleep.base.millis": "50",
            "dfs.client.socket-timeout": str(DATANODE_IDLE_MS),
        }
        with self._lock:
            if self._client is None:
                self._client = Client(self._name_nodes.url, settings, self._conf_dir or None)
            return self._client

    def _failure(
        self, error: BaseException, path: str, timed: TimedCall, limit_s: float
    ) -> CacheFSError:
        if timed.is_overdue:
            return _silence("HDFS", path, limit_s, "check its NameNode")
        found = classify(error, path)
        if isinstance(error, OSError) and isinstance(found, Unreachable):
            self._is_resolved = False  # the host may have another address now
        return found

    def _resolve(self, path: str, began_s: float, limit_s: float) -> None:
        """Looks the NameNodes up before the library does, which ends no lookup. Raises the error of
        a silent name server, and leaves the thread to its resolver; Unreachable if no thread can be
        started."""
        with self._lock:
            thread = self._resolving
            if thread is None or not thread.is_alive():
                thread = self._resolving = start_thread(self._look_up, "hdfs-lookup")
        thread.join(max(0.0, began_s + limit_s - time.monotonic()))
        if thread.is_alive():
            who = "the name server of HDFS's host"
            raise _silence(who, path, limit_s, "check the name service")

    def _look_up(self) -> None:
        found = resolve(self._name_nodes.hosts)
        self._addresses, self._is_resolved = found or self._addresses, bool(found)

    def _end_connections(self) -> None:
        end_connections(self._addresses)


def _silence(who: str, path: str, limit_s: float, remedy: str) -> CacheFSError:
    """Returns the error of a server that does not answer, perhaps as its packets are dropped. Less
    time than `CALL_S` is the caller's, and tells nothing of the server."""
    kind = NoAnswer if limit_s >= CALL_S else DeadlineExceeded
    return kind(f"{who} did not answer within {limit_s:.3g} s", path=path, remedy=remedy)
