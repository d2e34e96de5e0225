"""`connectors.download.downloader.Downloader` in a thread of its own, with bodies in memory."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from typing import Any

from connectors.download.downloader import FULL_S, Downloader, Target
from connectors.download.messages import Report
from connectors.fetch.request import HttpRequest, NewConnections
from tests.services.request_thread import RequestThread

READY_S = 20.0  # for the process to start
LOOK_S = 1.0

OnEnded = Callable[[bytes | None, int, str, NewConnections], None]
"""Receives the body, or None; how many bytes arrived; the code of the error; new connections."""


class DownloadThread(RequestThread):
    """See `RequestThread`."""

    def __init__(self, **options: Any) -> None:
        """`options`: those of `Downloader`."""
        self.downloader = Downloader(**options)
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        ready, _, _ = select.select([self.downloader.fileno()], [], [], READY_S)
        assert ready, "the process does not start"
        super().__init__("downloads")

    @property
    def pid(self) -> int:
        """The pid of the process."""
        return self.downloader._process.pid

    @property
    def has_ended(self) -> bool:
        return self.downloader.has_ended or self.downloader.hangs

    def start(self, request: HttpRequest, ended: OnEnded, sink: int = -1) -> bool:
        """Returns False, and calls nothing, once this has ended. `sink`: a file for the body, of
        which `ended` then receives nothing."""
        return self._submit(request, ended, sink)

    def close(self, wait_s: float) -> None:
        super().close(wait_s)
        assert self.downloader.has_stopped(wait_s), "the process does not end"

    def _wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

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

    def _turn(self) -> None:
        self.downloader.turn()
        limit_s = FULL_S if self.downloader.is_full else LOOK_S
        found, _, _ = select.select([self.downloader.fileno(), self._wake_fd], [], [], limit_s)
        if self._wake_fd in found:
            os.eventfd_read(self._wake_fd)

    def _end(self) -> None:
        self.downloader.close()
        os.close(self._wake_fd)
