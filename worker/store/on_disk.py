"""Pages as the disk has them, past the page cache where the file system can. Blocking.

After a write-back that failed the page cache may have the right bytes and the disk others: the
kernel takes such pages for written, and reads the disk's bytes once it has dropped them.
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


def is_right(fd: int, page: int, length: int, checksum: int) -> bool:
    """Returns whether a page has the recorded checksum on the disk. `fd` has an open file of its
    own, which this changes. Raises OSError for a page that cannot be read, or not be written back
    before that."""
    with mmap.mmap(-1, PAGE_BYTES) as buffer:  # aligned, as reads past the page cache want it
        count = read(fd, buffer, page * PAGE_BYTES)
        with memoryview(buffer) as view, view[:length] as data:
            return count >= length and xxhash.xxh3_64_intdigest(data) == checksum


def bad_pages(fd: int, size_bytes: int, checksums: dict[int, int]) -> list[int]:
    """Returns the pages whose bytes on the disk are wrong, or cannot be read."""
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
        return is_right(fd, page, range_bytes(size_bytes, page, page + 1), checksum)
    except OSError:
        return False


def read(fd: int, buffer: mmap.mmap, offset: int) -> int:
    """Reads from the disk where that can be. Elsewhere the kernel is asked to drop the pages first:
    it keeps those that are mapped, or dirty and not to be written."""
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
