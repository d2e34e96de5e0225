"""Downloads, many at once, by a child process (`connectors.download.process`).

A download fails on any reply but the expected one. The caller then leaves the rest to an ordinary
thread, which knows what the reply means and retries.
"""

from __future__ import annotations

import collections
import mmap
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from cachefs.core.errors import Unreachable
from connectors.deadline import LEAST_BYTES_PER_S
from connectors.download.messages import AT_ONCE, PACKET_BYTES, VERSION, Download, Orders, Report
from connectors.fetch.request import HttpRequest

SILENCE_LIMIT_S: Final = 10
PROCESS_LIMIT_S: Final = 60.0  # beside the time of its bytes: then the process counts as hung
FULL_S: Final = 0.001  # between attempts to send where the socket is full
OPTIONS_KEPT: Final = 64  # sets of options: one for each source and its credentials
AT_DISK_BYTES: Final = 8
_MODULE: Final = "connectors.download.process"
_CPUS: Final = os.sched_getaffinity(0)  # before threads of this process are kept on one of them

OnReport = Callable[[Report], None]
"""Receives the reports of one download, in order; the last one has a code. Must not raise."""


class Target(msgspec.Struct, frozen=True):
    """Where the bytes from `offset` of an object go: to `place` of a file, which stays open until
    the download has ended."""

    fd: int
    offset: int
    place: int
    report_s: float = 0.0  # the least time between two reports


class _Running(msgspec.Struct):
    on_report: OnReport
    until_s: float
    received_bytes: int = 0  # by the last report; `close` reports them again


class Downloader:
    """The downloads in progress. One thread calls all methods, none of which waits. It calls `turn`
    when the descriptor `fileno()` is readable, after `start` and `cancel`, and `FULL_S` after a
    turn that left `is_full`. It closes a downloader that `has_ended` or `hangs`."""

    def __init__(self, silence_s: int = SILENCE_LIMIT_S) -> None:
        """Starts the process. `silence_s`: the time without a byte that fails a download; within a
        body it takes some seconds more, since libcurl compares the mean of the last ones. Raises
        OSError where no descriptors or processes are left."""
        self._socket, self._shared, self._process = _start_process(silence_s)
        self._packet = bytearray(PACKET_BYTES)
        self._decode = msgspec.msgpack.Decoder(list[Report]).decode
        self._encode = msgspec.msgpack.Encoder().encode
        self._waiting: collections.deque[tuple[int, HttpRequest, Target]] = collections.deque()
        self._cancelled: list[int] = []
        self._running: dict[int, _Running] = {}
        self._options: dict[int, tuple[int, Mapping[int, Any]]] = {}  # by their identity
        self._last_id = self._last_number = 0
        self.is_full = False  # the process takes no more orders now
        self.is_ready = False  # the process takes orders
        self.has_ended = False  # the process has
        self.assigned = 0  # downloads, with those that are not started yet; the caller counts

    def fileno(self) -> int:
        """Returns the descriptor that is readable while `turn` has something to do."""
        return self._socket.fileno()

    @property
    def at_disk(self) -> int:
        """A number that is odd during a disk operation, and a new one each time. Until `close`."""
        return int.from_bytes(self._shared[:AT_DISK_BYTES], sys.byteorder)

    @property
    def hangs(self) -> bool:
        """True if the process does not end a download whose time is over."""
        now = time.monotonic()
        return any(running.until_s < now for running in self._running.values())

    def start(self, get: HttpRequest, target: Target, on_report: OnReport) -> int:
        """Begins a download, and returns its number."""
        self._last_id += 1
        until_s = time.monotonic() + PROCESS_LIMIT_S + get.size / LEAST_BYTES_PER_S
        self._running[self._last_id] = _Running(on_report, until_s)
        self._waiting.append((self._last_id, get, target))
        return self._last_id

    def cancel(self, id: int) -> None:
        """Ends a download soon; its last report follows."""
        if id in self._running:
            self._cancelled.append(id)

    def turn(self) -> None:
        """Sends the orders, and passes the reports on."""
        try:
            self._send_orders()
            self._receive()
        except OSError:  # the process has ended
            self.has_ended = True

    def close(self) -> None:
        """Ends all downloads, and the process. See `has_stopped`."""
        self._socket.close()
        self._shared.close()
        self._process.kill()
        self._waiting.clear()
        failed = [*self._running.items()]
        self._running.clear()
        for id, running in failed:
            running.on_report(Report(id, [], running.received_bytes, Unreachable.code))

    def has_stopped(self, limit_s: float = 0.0) -> bool:
        """Waits for the end of the closed process, after which nothing is written. Returns False if
        it has not ended by then, as while its disk hangs."""
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _receive(self) -> None:
        """Raises OSError if the process has ended."""
        while True:
            try:
                size = self._socket.recv_into(self._packet)
            except BlockingIOError:
                return
            if not size:
                raise ConnectionResetError
            self.is_ready = True
            for report in self._decode(memoryview(self._packet)[:size]):
                running = self._running.get(report.id)
                if running is None:
                    continue
                running.received_bytes = report.received_bytes
                if report.code is not None:
                    del self._running[report.id]
                running.on_report(report)

    def _send_orders(self) -> None:
        """Raises OSError if the process has ended."""
        self.is_full = False
        most = AT_ONCE
        while self._waiting or self._cancelled:
            taken = [self._waiting[i] for i in range(min(most, len(self._waiting)))]
            orders = self._orders(taken)
            packet = self._encode(orders)
            if len(packet) > PACKET_BYTES and len(taken) > 1:  # of long names and tokens
                most = len(taken) // 2
                self._forget(orders.options)
                continue
            try:
                fds = [target.fd for _, _, target in taken]
                socket.send_fds(self._socket, [packet], fds)
            except BlockingIOError:
                self.is_full = True
                return self._forget(orders.options)
            for _ in taken:
                self._waiting.popleft()
            if not self._waiting:
                self._cancelled = []

    def _orders(self, taken: Sequence[tuple[int, HttpRequest, Target]]) -> Orders:
        """Returns the message with these downloads. The last of them are sent before any is
        cancelled."""
        new: dict[int, Mapping[int, Any]] = {}
        downloads = [
            Download(
                id, get.url, get.headers, target.offset, get.size, target.place,
                self._number(get.options, new), get.answer, target.report_s,
            )
            for id, get, target in taken
        ]  # fmt: skip
        is_last = len(taken) == len(self._waiting)
        return Orders(new, downloads, self._cancelled if is_last else ())

    def _forget(self, new: Mapping[int, object]) -> None:
        """Forgets options that were not sent. Their numbers are used again: further ones would wrap
        and be those of options in use."""
        self._last_number = (self._last_number - len(new)) % (2 * OPTIONS_KEPT)
        found = self._options.items()
        self._options = {key: known for key, known in found if known[0] not in new}

    def _number(self, options: Mapping[int, Any], new: dict[int, Mapping[int, Any]]) -> int:
        """Returns the number of options, which are added to `new` if the process lacks them."""
        known = self._options.get(id(options))
        if known is not None:
            return known[0]
        if len(self._options) >= OPTIONS_KEPT:
            self._options.clear()
        self._last_number = (self._last_number + 1) % (2 * OPTIONS_KEPT)
        number = self._last_number
        new[number] = options
        self._options[id(options)] = number, options  # kept, so that no other has its identity
        return number


def _start_process(silence_s: int) -> tuple[socket.socket, mmap.mmap, subprocess.Popen[bytes]]:
    """Starts the process. Returns its socket, which does not block, and the memory with its number
    of disk operations."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    shared_fd = -1
    try:
        shared_fd = os.memfd_create("cachefs-download", os.MFD_CLOEXEC)
        os.ftruncate(shared_fd, mmap.PAGESIZE)
        shared = mmap.mmap(shared_fd, mmap.PAGESIZE)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * PACKET_BYTES)
        ours.setblocking(False)
        fds = theirs.fileno(), shared_fd
        cpus = ",".join(map(str, sorted(_CPUS)))
        process = subprocess.Popen(
            [sys.executable, "-I", "-m", _MODULE, VERSION, *map(str, (*fds, silence_s)), cpus],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd="/",
            pass_fds=fds,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
        if shared_fd >= 0:
            os.close(shared_fd)
    return ours, shared, process
