"""A request to a source, whose body is written straight into a file. Blocking.

The descriptor is the caller's. A transfer reports pages in order, each after all its bytes were
written, with its checksum. Excess bytes and incomplete pages are never reported.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import xxhash

from cachefs.core.errors import BadBody, CacheFSError, Interrupted
from cachefs.core.model import PAGE_BYTES, Origin
from cachefs.core.pages import ByteRange
from connectors.deadline import NEVER_S, bounded
from worker.fill.source import Purpose, Source, SourceBody
from worker.fill.tier_body import TierBody

if TYPE_CHECKING:
    from worker.store.directory import TierDirectory
    from worker.tier.entry import Entry

CallInLoop = Callable[..., None]  # calls a function, its first argument, in the loop
OnPage = Callable[[CallInLoop, int, int], None]  # with the page number and its xxh3_64


class DiskFault(CacheFSError):
    """Raised when the tier's disk fails a write. Never leaves the worker: the read bypasses the
    tier."""

    code = "disk-fault"

    def __init__(self, error: OSError) -> None:
        super().__init__(f"the cache disk failed: {error.strerror or error}")
        self.error = error


def make_cache_file(entry: Entry, tier: TierDirectory) -> None:
    """Creates the cache file unless it exists; in a thread. Raises DiskFault."""
    try:
        entry.make_file(tier)
    except OSError as err:
        raise DiskFault(err) from err


class Transfer:
    """The pages [first, end) of a file into `fd`, whose byte 0 is the file's byte `base`; of these
    only the bytes [start, stop) of `span`, if given.

    `limit_s`: the source's retries and waits end this long after the start of `run`. `moved_s`:
    when `run` began, or the last page was whole; 0.0 before; of `time.monotonic`. After `run`,
    however it ended: `origin_bytes` are from the origin, `peer_bytes` from peers, and `tier_bytes`
    from other tiers of this node; `next_page` is the first that is not whole.
    """

    __slots__ = (
        "_at", "_base", "_body", "_cancel", "_cut", "_fd", "_hash", "_on_page", "_origin", "_stop",
        "_wake", "aborted", "at_disk", "limit_s", "moved_s", "next_page", "origin_bytes",
        "peer_bytes", "tier_bytes",
    )  # fmt: skip

    def __init__(
        self,
        origin: Origin,
        first: int,
        end: int,
        base: int,
        on_page: OnPage,
        wake: CallInLoop,
        span: ByteRange | None = None,
    ) -> None:
        """Covers at least one page, or a byte of each page. `wake` calls the loop from a
        thread."""
        self._origin = origin
        self._fd = -1
        self._base = base
        self._on_page = on_page
        self._wake = wake
        self._at = first * PAGE_BYTES
        self._stop = min(end * PAGE_BYTES, origin.size)
        if span is not None:
            self._at, self._stop = max(self._at, span[0]), min(self._stop, span[1])
        self._body: SourceBody | None = None
        self._cancel: Callable[[], None] | None = None  # of a download in progress
        self._cut: CacheFSError | None = None
        self.limit_s = NEVER_S
        self.moved_s = 0.0
        self.aborted = False
        self.at_disk = 0  # odd during a disk operation, a new number each time
        self.next_page = first
        self.origin_bytes = 0
        self.peer_bytes = 0
        self.tier_bytes = 0

    def run(self, source: Source, fd: int, purpose: Purpose = Purpose.READ) -> None:
        """Writes the source's body to `fd`, and closes the body in any case. Raises the source's
        errors, the error of `cut`, BadBody, DiskFault, Interrupted."""
        self.raise_if_aborted()
        self._fd, self._hash, self.moved_s = fd, xxhash.xxh3_64(), time.monotonic()
        size = self._stop - self._at
        with bounded(self.moved_s + self.limit_s):
            body = self._body = source.read(self._origin, self._at, size, purpose)
            try:
                self.raise_if_aborted()  # an abort before this line has not closed the body
                for chunk in body:
                    self._take(memoryview(chunk), body)
            finally:
                body.close()
        self.raise_if_aborted()
        if self._at != self._stop:
            raise BadBody(f"the body ended {self._stop - self._at} bytes early", path=self._path)

    def store(self, fd: int, body: memoryview) -> None:
        """Writes a body of one page that the caller has received from the origin, instead of `run`.
        Raises DiskFault, Interrupted."""
        self.origin_bytes = len(body)
        self.raise_if_aborted()
        self._fd = fd
        self._write(body)
        self._page(len(body), xxhash.xxh3_64_intdigest(body))

    @property
    def range(self) -> tuple[int, int]:
        """The offset and the size of what is missing."""
        return self._at, self._stop - self._at

    @property
    def place(self) -> int:
        """The offset in the destination of what is missing."""
        return self._at - self._base

    @property
    def is_downloading(self) -> bool:
        """True while another process writes to the file."""
        return self._cancel is not None

    def began_download(self, cancel: Callable[[], None]) -> None:
        """Records that another process writes what is missing, until `ended_download`. Nothing was
        fetched before. Afterwards `run` may fetch the rest."""
        assert self.origin_bytes == 0
        self._cancel, self.moved_s = cancel, time.monotonic()
        if self.aborted:
            cancel()

    def downloaded(self, received_bytes: int, checksums: Sequence[int]) -> None:
        """Records all bytes that the other process has received, and further whole pages. In the
        loop."""
        self.origin_bytes = received_bytes
        if self.aborted:
            return
        for checksum in checksums:
            self._at = min((self.next_page + 1) * PAGE_BYTES, self._stop)
            self._has_page(checksum, _call)

    def ended_download(self) -> None:
        """Records that the other process writes no more."""
        self._cancel = None

    def abort(self) -> None:
        """Stops all further writes; `run` ends as soon as its body returns. In the loop. Returns at
        once: another thread closes the body, since a close may wait for a disk."""
        is_first, self.aborted = not self.aborted, True
        if is_first and self._cancel is not None:
            self._cancel()
        if is_first and self._body is not None:
            with contextlib.suppress(RuntimeError):  # no more threads: only `run` closes the body
                threading.Thread(target=self._body.close, name="cut", daemon=True).start()

    def cut(self, error: CacheFSError) -> None:
        """Aborts the transfer; `run` raises this error."""
        self._cut = error
        self.abort()

    def raise_if_aborted(self) -> None:
        """Raises the error of `cut`, or Interrupted, if the transfer was aborted. Called before
        each step, as the transfer's owner waits for the thread."""
        if self.aborted:
            raise self._cut or Interrupted("the worker is closing")

    @property
    def _path(self) -> str:
        return self._origin.path.decode(errors="replace")

    def _take(self, chunk: memoryview, body: SourceBody) -> None:
        self.raise_if_aborted()
        if isinstance(body, TierBody) and body.from_tier:
            self.tier_bytes += len(chunk)
        elif body.from_peer:
            self.peer_bytes += len(chunk)
        else:
            self.origin_bytes += len(chunk)
        if self._at + len(chunk) > self._stop:
            raise BadBody("the body is longer than was asked for", path=self._path)
        self._write(chunk)
        if body.checksum is not None:
            return self._page(len(chunk), body.checksum)
        start = 0
        while start < len(chunk):
            page_end = min((self.next_page + 1) * PAGE_BYTES, self._stop)
            stop = min(len(chunk), start + page_end - self._at)
            self._at += stop - start
            self._digest(chunk[start:stop], whole=self._at == page_end)
            start = stop

    def _write(self, chunk: memoryview) -> None:
        """Writes all of the chunk. Continues after a short write: a full disk fails the next
        one."""
        at, done = self._at - self._base, 0
        self.at_disk += 1
        try:
            while done < len(chunk):
                done += os.pwrite(self._fd, chunk[done:] if done else chunk, at + done)
        except OSError as err:
            raise DiskFault(err) from err
        finally:
            self.at_disk += 1

    def _page(self, size: int, checksum: int) -> None:
        """Records a verified chunk that is exactly the next page."""
        self._at += size
        assert self._at == min((self.next_page + 1) * PAGE_BYTES, self._stop), "not a whole page"
        self._has_page(checksum, self._wake)

    def _digest(self, part: memoryview, *, whole: bool) -> None:
        self._hash.update(part)
        if whole:
            checksum = self._hash.intdigest()
            self._hash.reset()
            self._has_page(checksum, self._wake)

    def _has_page(self, checksum: int, call: CallInLoop) -> None:
        """Reports that the next page is whole."""
        page = self.next_page
        self.moved_s = time.monotonic()
        self.next_page += 1
        self._on_page(call, page, checksum)


def _call(function: Callable[..., None], *args: Any) -> None:
    function(*args)


def of_source(error: BaseException) -> CacheFSError:
    """Returns the error if it is the source's; raises any other."""
    if isinstance(error, DiskFault) or not isinstance(error, CacheFSError):
        raise error
    return error


PIECE_PAGES: Final = 8  # of one request
