"""A handle of libcurl that writes its body into a file, piece by piece while the CPU's cache has
it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from typing import Any, Final

import xxhash

from cachefs.core.model import PAGE_BYTES
from connectors.fetch.exchange import Exchange
from connectors.fetch.request import HttpRequest

WRITE_BYTES: Final = 128 << 10  # of one write: fewer calls, and the CPU's cache still has them
WRITE_PIECES: Final = 64  # of one write; the kernel takes 1024
BLOCK_BYTES: Final = 512  # of `st_blocks`, see stat(2)
_STOP: Final = 0  # bytes accepted, fewer than given: libcurl ends the request


class FileExchange(Exchange):
    """One download at a time. Writes nothing before the head is the expected one."""

    def __init__(self, at_disk: memoryview, limits: Iterable[tuple[int, Any]] = ()) -> None:
        """`at_disk`: a number that is odd while a write is in progress."""
        super().__init__(limits)
        self.checksums: list[int] = []  # of whole pages, not reported yet
        self.received_bytes = 0
        self.errno = 0  # of a failed write
        self._at_disk = at_disk
        self._hash = xxhash.xxh3_64()
        self._get: HttpRequest | None = None
        self._fd = -1
        self._place = 0  # in the file, of the next byte
        self._pieces: list[bytes] = []  # to be written
        self._gathered_bytes = 0
        self._page_left = self._after_page = 0  # bytes of the body, in its page and behind it

    def begin_file(self, get: HttpRequest, fd: int, offset: int, place: int) -> None:
        """Prepares a download into `fd`, which this object closes at `end`."""
        self.begin(get, memoryview(b""))
        self._get = get
        self._fd, self._place = fd, place
        self._pieces.clear()
        self._gathered_bytes = 0
        self.checksums = []
        self.received_bytes = self.errno = 0
        self._hash.reset()
        self._page_left = min(get.size, PAGE_BYTES - offset % PAGE_BYTES)
        self._after_page = get.size - self._page_left

    @property
    def is_large(self) -> bool:
        """True if the body has more than the current page."""
        return self._after_page > 0

    def end(self) -> int:
        """Closes the file. Returns the bytes that it takes on its disk; -1: the disk failed."""
        fd, self._fd = self._fd, -1
        self._at_disk[0] += 1
        try:
            allocated_bytes = os.fstat(fd).st_blocks * BLOCK_BYTES
        except OSError:
            allocated_bytes = -1
        try:
            os.close(fd)
        except OSError as err:  # the file is closed, but earlier writes have failed
            self.errno = err.errno or errno.EIO
        self._at_disk[0] += 1
        return allocated_bytes

    def take_checksums(self) -> list[int]:
        """Returns the checksums since the last call."""
        found, self.checksums = self.checksums, []
        return found

    def _on_body(self, data: bytes) -> int | None:
        if not self._is_success and not self._is_expected():
            return _STOP
        size = len(data)
        if size > self.left:
            self.is_over = True
            return _STOP
        self._pieces.append(data)
        self._gathered_bytes += size
        self.left -= size
        self.received_bytes += size
        ends_page = size >= self._page_left
        if (ends_page or self._is_much()) and not self._write():
            return _STOP
        if ends_page:
            self._end_page(memoryview(data))
        else:
            self._page_left -= size
            self._hash.update(data)
        return None

    def _is_expected(self) -> bool:
        """Compares the head before the first byte of the body."""
        self._is_success = self._get is not None and self._get.is_answer(self.head)
        return self._is_success

    def _is_much(self) -> bool:
        return self._gathered_bytes >= WRITE_BYTES or len(self._pieces) >= WRITE_PIECES

    def _write(self) -> bool:
        """Writes the pieces that are gathered. Returns False if the disk fails."""
        pieces, at_disk = self._pieces, self._at_disk
        at_disk[0] += 1
        try:
            done = os.pwritev(self._fd, pieces, self._place)
            if done < self._gathered_bytes:
                done += self._write_rest(b"".join(pieces)[done:], self._place + done)
        except OSError as err:
            self.errno = err.errno or errno.EIO
            return False
        finally:
            at_disk[0] += 1
            pieces.clear()
        self._place += done
        self._gathered_bytes = 0
        return True

    def _write_rest(self, data: bytes, place: int) -> int:
        """Continues after a short write: a full disk fails the next one."""
        done = 0
        while done < len(data):
            done += os.pwrite(self._fd, data[done:], place + done)
        return done

    def _end_page(self, data: memoryview) -> None:
        """Takes bytes of which some end a page."""
        while self._page_left and len(data) >= self._page_left:
            self._hash.update(data[: self._page_left])
            self.checksums.append(self._hash.intdigest())
            self._hash.reset()
            data = data[self._page_left :]
            self._page_left = min(PAGE_BYTES, self._after_page)
            self._after_page -= self._page_left
        if data:
            self._hash.update(data)
            self._page_left -= len(data)
