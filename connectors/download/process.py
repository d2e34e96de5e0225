"""The download process of a worker: `python -m connectors.download.process`.

libcurl calls back for each 16 KiB. In the worker's process each call-back would wait for the
interpreter's lock. One thread drives all downloads. The process ends with the worker's socket.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
import pycurl

from connectors.deadline import LEAST_BYTES_PER_S
from connectors.download.file_exchange import FileExchange
from connectors.download.messages import AT_ONCE, PACKET_BYTES, VERSION, Download, Orders, Report
from connectors.fetch.multi import Ended, Multi
from connectors.fetch.request import NO_NEW_CONNECTIONS, HttpRequest

CONNECTIONS: Final = 256  # kept
HEAD_LIMIT_S: Final = 20  # until the head of a reply, beside the time of its bytes
EVENTS_AT_ONCE: Final = 16  # of sockets: TLS takes 0.1 ms for the body of one, and others wait
CANCELLED: Final = "interrupted"


class DownloadProcess:
    """The downloads of one worker."""

    def __init__(self, worker: socket.socket, at_disk: memoryview, silence_s: int) -> None:
        self._worker = worker
        self._at_disk = at_disk
        self._limits = (pycurl.LOW_SPEED_LIMIT, 1), (pycurl.LOW_SPEED_TIME, silence_s)
        self._decode = msgspec.msgpack.Decoder(Orders).decode
        self._encode = msgspec.msgpack.Encoder().encode
        self._multi = Multi(CONNECTIONS)
        self._options: dict[int, Mapping[int, Any]] = {}
        self._running: dict[FileExchange, tuple[int, HttpRequest]] = {}
        self._by_id: dict[int, FileExchange] = {}
        self._idle: list[FileExchange] = []
        # Those of several pages, which are reported while they go on: since when, how often.
        self._large: dict[FileExchange, tuple[float, float]] = {}

    def run(self) -> None:
        """Serves until the worker closes its socket. Raises OSError."""
        events = select.epoll()
        events.register(self._worker, select.EPOLLIN)
        events.register(self._multi.fileno(), select.EPOLLIN)
        self._send([])  # ready
        while True:
            found = events.poll(self._multi.due_in_s())
            if any(fd == self._worker.fileno() for fd, _ in found) and not self._take_orders():
                return
            reports = [self._finish(ended) for ended in self._multi.turn(0.0, EVENTS_AT_ONCE)]
            reports += self._progress()
            if reports:
                self._send(reports)

    def _take_orders(self) -> bool:
        """Returns False if the worker has closed its socket."""
        data, fds, _, _ = socket.recv_fds(self._worker, PACKET_BYTES, AT_ONCE)
        if not data:
            return False
        orders = self._decode(data)
        self._options.update(orders.options)
        for download, fd in zip(orders.downloads, fds, strict=True):
            self._begin(download, fd)
        reports = [self._cancel(id) for id in orders.cancelled if id in self._by_id]
        if reports:
            self._send(reports)
        return True

    def _begin(self, download: Download, fd: int) -> None:
        options = self._options[download.options]
        get = HttpRequest(download.url, download.headers, download.size, options, download.answer)
        exchange = self._idle.pop() if self._idle else FileExchange(self._at_disk, self._limits)
        self._running[exchange] = download.id, get
        self._by_id[download.id] = exchange
        exchange.begin_file(get, fd, download.offset, download.place)
        limit_s = HEAD_LIMIT_S + download.size // LEAST_BYTES_PER_S
        exchange.curl.setopt(pycurl.TIMEOUT, limit_s)
        self._multi.add(exchange)
        if exchange.is_large:
            self._large[exchange] = time.monotonic(), download.report_s

    def _finish(self, ended: Ended) -> Report:
        exchange = ended.exchange
        assert isinstance(exchange, FileExchange)
        _, get = self._running[exchange]
        return self._end(exchange, ended.error_of(get))

    def _cancel(self, id: int) -> Report:
        exchange = self._by_id[id]
        self._multi.remove(exchange)
        return self._end(exchange, CANCELLED)

    def _end(self, exchange: FileExchange, code: str) -> Report:
        id, _ = self._running.pop(exchange)
        del self._by_id[id]
        self._large.pop(exchange, None)
        made = exchange.made if code != CANCELLED else NO_NEW_CONNECTIONS
        allocated_bytes = exchange.end()
        self._idle.append(exchange)
        return Report(
            id, exchange.take_checksums(), exchange.received_bytes, code, exchange.errno,
            made.connections, made.handshakes, allocated_bytes,
        )  # fmt: skip

    def _progress(self) -> list[Report]:
        """Returns the reports of downloads with further whole pages."""
        now, reports = time.monotonic(), []
        for one, (since_s, least_s) in self._large.items():
            if one.checksums and now >= since_s + least_s:
                self._large[one] = now, least_s
                reports.append(
                    Report(self._running[one][0], one.take_checksums(), one.received_bytes)
                )
        return reports

    def _send(self, reports: list[Report]) -> None:
        """Blocks while the worker receives nothing."""
        self._worker.sendall(self._encode(reports))


def main(socket_fd: int, shared_fd: int, silence_s: int, cpus: Iterable[int]) -> None:
    """Serves until the worker closes its socket."""
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the worker, which may still need it
        signal.signal(number, signal.SIG_IGN)
    os.sched_setaffinity(0, cpus)  # not only the one of the thread that started this process
    at_disk = memoryview(mmap.mmap(shared_fd, mmap.PAGESIZE)).cast("Q")
    try:
        DownloadProcess(socket.socket(fileno=socket_fd), at_disk, silence_s).run()
    except (BrokenPipeError, ConnectionResetError):  # the worker has ended
        pass
    os._exit(0)  # libcurl would wait for names that are being looked up


if __name__ == "__main__":
    if sys.argv[1] != VERSION:
        sys.exit(f"the worker is of version {sys.argv[1]}, its download process of {VERSION}")
    _socket_fd, _shared_fd, _silence_s = map(int, sys.argv[2:5])
    main(_socket_fd, _shared_fd, _silence_s, map(int, sys.argv[5].split(",")))
