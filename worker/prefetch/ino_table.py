"""The table of inode numbers of a manifest, read from a descriptor that a client has sent.

It is read, not mapped: a program that shortens a mapped file kills the processes that read it.
"""

from __future__ import annotations

import os
import stat

from cachefs.core.errors import BadConfig
from cachefs.core.manifest_format import (
    INO_BYTES,
    INO_HEADER_BYTES,
    NO_NAMESPACE,
    InoTableHeader,
)
from cachefs.core.model import NamespaceId


class InoTable:
    """Owns the descriptor."""

    def __init__(self, fd: int, namespace: NamespaceId, count: int) -> None:
        """Raises BadConfig unless the file is the table of `count` files of this namespace; the
        caller keeps the descriptor then."""
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise BadConfig("the ino table of the manifest is not a regular file")
        try:
            data = os.pread(fd, INO_HEADER_BYTES, 0)
        except OSError as err:
            raise BadConfig(f"the ino table of the manifest: {err.strerror}") from err
        header = InoTableHeader.decode(data, found.st_size)
        if header.count != count:
            raise BadConfig(f"the manifest has {header.count} files, the order {count}")
        if header.namespace not in (NO_NAMESPACE, namespace):
            raise BadConfig(
                "the manifest is of another source", remedy="build it again on this mount"
            )
        self._fd = fd

    def read(self, index: int) -> int:
        """Returns an inode number. Raises OSError, also where the file became shorter."""
        data = os.pread(self._fd, INO_BYTES, INO_HEADER_BYTES + INO_BYTES * index)
        if len(data) != INO_BYTES:
            raise OSError("the ino table became shorter")
        return int.from_bytes(data, "little")

    def close(self) -> None:
        """Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
