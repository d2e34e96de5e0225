"""Downloads of several pages from the origin straight into files, by processes of the tier
(`connectors.download`). Ordinary threads fetch what that cannot. Owned by the loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

import msgspec

from cachefs.core.model import PAGE_BYTES, Origin
from connectors.download.downloader import FULL_S, Downloader, Target
from connectors.download.messages import Report
from connectors.fetch.request import NOT_SENT, NewConnections, RangeRequest
from worker.fill.source import Source
from worker.fill.transfer import DiskFault, Transfer
from worker.runtime.threads import Done, LoopCallbackQueue, Threads

log = logging.getLogger(__name__)

AT_ONCE: Final = 64
PROCESSES: Final = max(1, min(4, len(os.sched_getaffinity(0)) // 2))
BUSY: Final = 8  # downloads of a process: then another one may help
QUIET_S: Final = 0.1  # between reports of pages that no reader waits for
IDLE_S: Final = 60.0  # then the processes are ended, with their connections
RETRY_S: Final = 5.0  # after a process could not be started, or ended; doubles each time
MOST_RETRY_S: Final = 600.0


class MissingPart(msgspec.Struct, frozen=True):
    """What a transfer misses, to be downloaded. `open()` returns the file; it raises where that
    fails or the transfer was aborted. At the end `ended(None, error)` is called, with the error of
    `open`, or the DiskFault of a failed write. Or `otherwise()` is: an ordinary thread is to fetch
    the rest. Before either, `allocated` receives the space that the file takes."""

    origin: Origin
    transfer: Transfer
    open: Callable[[], int]
    is_background: bool  # no reader waits for its pages
    allocated: Callable[[int], None]
    ended: Done
    otherwise: Callable[[], None]


class Downloads:
    """The downloads of one tier. `openers` open the files, where that may block; None: the loop
    does. `processes` is the most at once."""

    def __init__(
        self,
        source: Source,
        openers: Threads | None,
        wake: LoopCallbackQueue,
        processes: int = PROCESSES,
    ) -> None:
        self._source = source
        self._wake = wake
        self._openers = openers
        self._processes = processes
        self._loop = asyncio.get_running_loop()
        self._running: list[Downloader] = []
        self._stopping: list[Downloader] = []  # closed; they may write until they have ended
        self._timer: asyncio.Handle | None = None
        self._is_closed = False
        self._in_flight = 0
        self._failures = 0  # of processes, since a download succeeded
        self._retry_at_s = float("-inf")
        self._started_s = float("-inf")  # the last download, or when one was expected

    def start(self, wanted: MissingPart) -> bool:
        """Downloads what a transfer misses. Its call-backs follow after this has returned. Returns
        False where that is not possible in this way, and calls nothing."""
        ask = self._request(wanted)
        if ask is None:
            return False
        downloader = self._choose()
        if downloader is None:
            ask.ended(0, NOT_SENT)
            return False
        self._started_s = self._loop.time()
        self._in_flight += 1
        downloader.assigned += 1
        one = _Download(self, downloader, wanted, ask)
        if self._openers is None:
            one.opened(*_outcome(wanted.open))
        else:
            self._openers.submit(wanted.open, done=one.opened)
        return True

    def expect(self) -> None:
        """Starts a process, unless one runs, since downloads are likely to follow soon."""
        self._started_s = self._loop.time()
        if not self._running:
            self._start_process()

    def _request(self, wanted: MissingPart) -> RangeRequest | None:
        offset, size = wanted.transfer.range
        if self._in_flight >= AT_ONCE or size <= PAGE_BYTES:  # a thread is as fast for one page
            return None
        return self._source.ask(wanted.origin, offset, size)

    def disk_writes(self) -> list[Hashable]:
        """Returns a unique key for each write in progress."""
        return [(one, step) for one in self._running if (step := one.at_disk) & 1]

    def look(self) -> None:
        """Ends processes that are idle, or hang. Called a few times a second."""
        for one in [one for one in self._running if one.hangs]:
            self._give_up(one, "hangs")
        if not self._in_flight and self._loop.time() - self._started_s >= IDLE_S:
            self.end_processes()
        self._stopping = [one for one in self._stopping if not one.has_stopped()]

    def end_processes(self) -> None:
        """Ends all downloads: what is left of them is left to `otherwise`. A later download starts
        another process."""
        for one in [*self._running]:
            self._end_process(one)

    def close(self) -> None:
        """Ends all downloads, and starts no more. Idempotent."""
        self._is_closed = True
        self.end_processes()

    def wait_stopped(self, limit_s: float) -> bool:
        """Waits until nothing is written any more, after `close`. Blocks: not for the loop's
        thread. Returns False if something may still be."""
        until_s = time.monotonic() + limit_s
        stopped = True
        for one in self._stopping:
            stopped &= one.has_stopped(max(0.0, until_s - time.monotonic()))
        return stopped

    def serves(self, downloader: Downloader) -> bool:
        """Returns whether the process takes orders."""
        return downloader in self._running

    # ---- the processes ----

    def _choose(self) -> Downloader | None:
        """Returns the process with the fewest downloads. Starts another one where all have many:
        it serves later ones."""
        ready = [one for one in self._running if one.is_ready]
        found = min(ready, key=lambda one: one.assigned, default=None)
        is_busy = found is None or found.assigned >= BUSY
        if is_busy and len(ready) == len(self._running) < self._processes:
            self._start_process()
        return found

    def _start_process(self) -> None:
        if self._is_closed or self._loop.time() < self._retry_at_s:
            return
        try:
            one = Downloader()
        except OSError as err:
            self._start_later()
            return log.warning("no download process can be started: %s", err.strerror or err)
        self._started_s = self._loop.time()
        self._running.append(one)
        self._loop.add_reader(one.fileno(), self._turn, one)

    def _end_process(self, downloader: Downloader) -> None:
        self._running.remove(downloader)
        self._loop.remove_reader(downloader.fileno())
        downloader.close()
        self._stopping.append(downloader)

    def _start_later(self) -> None:
        pause_s = min(RETRY_S * 2**self._failures, MOST_RETRY_S)
        self._retry_at_s = self._loop.time() + pause_s
        if pause_s < MOST_RETRY_S:  # else 2**1024, after a week of failures, is no float
            self._failures += 1

    def succeeded(self) -> None:
        """Records that a process has downloaded a range."""
        self._failures = 0

    def _give_up(self, downloader: Downloader, cause: str) -> None:
        self._start_later()
        log.warning("a download process %s: threads fetch what it has left", cause)
        self._end_process(downloader)

    def _turn(self, downloader: Downloader) -> None:
        downloader.turn()
        if downloader.has_ended:
            self._give_up(downloader, "has ended")
        elif downloader.is_full and self._timer is None:
            self._timer = self._loop.call_later(FULL_S, self._on_timer)

    def turn_soon(self) -> None:
        """Sends the orders of this turn of the loop, together."""
        if self._timer is None:
            self._timer = self._loop.call_soon(self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        for one in [*self._running]:
            self._turn(one)

    # ---- ends ----

    def end_soon(self, downloader: Downloader, tell: Callable[[], None]) -> None:
        """Ends a download in the next turn of the loop."""
        self._in_flight -= 1
        downloader.assigned -= 1
        self._wake.call_from_loop(tell)


@dataclass(eq=False, slots=True)
class _Download:
    """One download."""

    _downloads: Downloads
    _downloader: Downloader
    _wanted: MissingPart
    _ask: RangeRequest

    def opened(self, fd: int | None, error: BaseException | None) -> None:
        """Begins, with the file."""
        wanted, downloads = self._wanted, self._downloads
        if fd is None or not downloads.serves(self._downloader):
            self._ask.ended(0, NOT_SENT)
            tell = wanted.otherwise if error is None else lambda: wanted.ended(None, error)
            return downloads.end_soon(self._downloader, tell)
        transfer = wanted.transfer
        report_s = QUIET_S if wanted.is_background else 0.0
        target = Target(fd, transfer.range[0], transfer.place, report_s)
        id = self._downloader.start(self._ask.get, target, self._on_report)
        transfer.began_download(lambda: self._cancel(id))
        downloads.turn_soon()

    def _cancel(self, id: int) -> None:
        self._downloader.cancel(id)
        self._downloads.turn_soon()

    def _on_report(self, report: Report) -> None:
        self._wanted.transfer.downloaded(report.received_bytes, report.checksums)
        if report.code is not None:
            self._downloads.end_soon(self._downloader, lambda: self._end(report))

    def _end(self, report: Report) -> None:
        wanted, code = self._wanted, report.code or ""
        wanted.transfer.ended_download()
        if report.allocated_bytes >= 0:
            wanted.allocated(report.allocated_bytes)
        try:
            if report.connections:
                self._ask.made(NewConnections(report.connections, report.handshakes))
            self._ask.ended(report.received_bytes, "" if report.errno else code)
        finally:
            if report.errno:
                cause = OSError(report.errno, os.strerror(report.errno))
                wanted.ended(None, DiskFault(cause))
            elif code:
                wanted.otherwise()
            else:
                self._downloads.succeeded()
                wanted.ended(None, None)


def _outcome(open: Callable[[], int]) -> tuple[int | None, BaseException | None]:
    """Returns the file, or what `open` raises, of whatever type: the reader gets it."""
    try:
        return open(), None
    except Exception as err:  # noqa: BLE001 -- handed to the caller
        return None, err
