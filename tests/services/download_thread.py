"""`connectors.download.downloader.Downloader` in a thread of its own, with bodies in memory."""

from __future__ import annotations

import collections
import os
import select
import threading
from collections.abc import Callable
from typing import Any

from connectors.download.downloader import FULL_S, Downloader, Target
from connectors.download.messages import Report
from connectors.fetch.request import HttpRequest, NewConnections

READY_S = 20.0  # for the process to start
LOOK_S = 1.0

OnEnded = Callable[[bytes | None, int, str, NewConnections], None]
"""Receives the body, or None; how many bytes arrived; the code of the error; new connections."""


class DownloadThread:
    """Runs until `close`, or until a call-back raises."""

    def __init__(self, **options: Any) -> None:
        """`options`: those of `Downloader`."""
        self.error: BaseException | None = None  # that ended it
        self.downloader = Downloader(**options)
        self._lock = threading.Lock()
        self._new: collections.deque[tuple[HttpRequest, OnEnded, int]] = collections.deque()
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_closed = False
        ready, _, _ = select.select([self.downloader.fileno()], [], [], READY_S)
        assert ready, "the process does not start"
        self.thread = threading.Thread(target=self._run, name="downloads")
        self.thread.start()

    @property
    def pid(self) -> int:
        """The pid of the process."""
        return self.downloader._process.pid

    def start(self, request: HttpRequest, ended: OnEnded, sink: int = -1) -> bool:
        """Returns False, and calls nothing, once this has ended. `sink`: a file for the body, of
        which `ended` then receives nothing."""
        with self._lock:
            if not self._is_closed:
                self._new.append((request, ended, sink))
                os.eventfd_write(self._wake_fd, 1)
            return not self._is_closed

    def close(self, wait_s: float) -> None:
        """Ends all downloads. Idempotent."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                os.eventfd_write(self._wake_fd, 1)
        self.thread.join(wait_s)
        assert not self.thread.is_alive(), "the thread does not end"
        assert self.downloader.has_stopped(wait_s), "the process does not end"

    def _run(self) -> None:
        try:
            while not (self._is_closed or self.downloader.has_ended or self.downloader.hangs):
                while self._new:
                    self._begin(*self._new.popleft())
                self.downloader.turn()
                self._wait()
        except BaseException as err:  # noqa: BLE001 -- for the test to look at
            self.error = err
        finally:
            with self._lock:
                self._is_closed = True
            while self._new:
                self._begin(*self._new.popleft())
            self.downloader.close()
            os.close(self._wake_fd)

    def _begin(self, request: HttpRequest, ended: OnEnded, sink: int) -> None:
        fd = os.dup(sink) if sink >= 0 else os.memfd_create("body", os.MFD_CLOEXEC)

        def on_report(report: Report) -> None:
            if report.code is None:
                return
            try:
                body = None
                if not report.code:
                    body = os.pread(fd, request.size + 1, 0) if sink < 0 else b""
            finally:
                os.close(fd)
            made = NewConnections(report.connections, report.handshakes)
            ended(body, report.received_bytes, report.code, made)

        self.downloader.start(request, Target(fd, 0, 0), on_report)

    def _wait(self) -> None:
        limit_s = FULL_S if self.downloader.is_full else LOOK_S
        found, _, _ = select.select([self.downloader.fileno(), self._wake_fd], [], [], limit_s)
        if self._wake_fd in found:
            os.eventfd_read(self._wake_fd)
