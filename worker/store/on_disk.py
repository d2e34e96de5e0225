"""Reads of pages from the disk, past the page cache if the file system supports it. Blocking.

After a failed write-back the page cache may have the right bytes and the disk others: the kernel
considers such pages written, and reads the disk's bytes after it has dropped them.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os

import xxhash

from cachefs.core.model import PAGE_BYTES
from cachefs.core.pages import range_bytes
from worker.store.filesystem import reopen


def page_matches(fd: int, page: int, length: int, checksum: int) -> bool:
    """Returns whether a page on the disk has the recorded checksum. `fd` is from `reopen`, since
    its flags are changed. Raises OSError if the page cannot be written back or read."""
    with mmap.mmap(-1, PAGE_BYTES) as buffer:  # aligned, as O_DIRECT requires
        count = read(fd, buffer, page * PAGE_BYTES)
        with memoryview(buffer) as view, view[:length] as data:
            return count >= length and xxhash.xxh3_64_intdigest(data) == checksum


def bad_pages(fd: int, size_bytes: int, checksums: dict[int, int]) -> list[int]:
    """Returns the pages whose bytes on the disk are wrong or cannot be read."""
    own = reopen(fd)
    try:
        return [
            page
            for page, checksum in checksums.items()
            if not _is_readable_and_right(own, size_bytes, page, checksum)
        ]
    finally:
        os.close(own)


def _is_readable_and_right(fd: int, size_bytes: int, page: int, checksum: int) -> bool:
    try:
        return page_matches(fd, page, range_bytes(size_bytes, page, page + 1), checksum)
    except OSError:
        return False


def read(fd: int, buffer: mmap.mmap, offset: int) -> int:
    """Reads with O_DIRECT. If that is not supported, first writes the file back and makes the
    kernel drop the pages; it keeps mapped pages and dirty ones that it could not write."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_DIRECT)
        return os.preadv(fd, [buffer], offset)
    except OSError as err:
        if err.errno != errno.EINVAL:
            raise
    fcntl.fcntl(fd, fcntl.F_SETFL, 0)
    os.fdatasync(fd)
    os.posix_fadvise(fd, offset, len(buffer), os.POSIX_FADV_DONTNEED)
    return os.preadv(fd, [buffer], offset)
