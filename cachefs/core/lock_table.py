"""The lock table of an LMDB environment, in memory instead of beside its data.

Each read transaction writes to this table through a memory map, and py-lmdb holds the GIL while it
does. In a file on a disk that hangs, or whose file system is frozen (`fsfreeze`), such a write
waits, and all threads of the process with it. The table is needed only while the environment is
open.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

LOCK_TABLE: Final = "lock.mdb"


@contextlib.contextmanager
def lock_table_in_memory(directory: Path) -> Iterator[None]:
    """Makes LMDB create the lock table in memory, of an environment that the block opens.

    The caller has locked `directory`: other processes that open the environment do not see this
    table. A lock table on the disk, of an earlier version, is removed. Where the file system has no
    symbolic links, LMDB creates the table on the disk, with the effect above.
    """
    path = directory / LOCK_TABLE
    fd = os.memfd_create("cachefs-lock-table", os.MFD_CLOEXEC)
    try:
        try:
            path.unlink(missing_ok=True)
            path.symlink_to(f"/proc/self/fd/{fd}")
        except OSError as err:
            log.info("the lock table of %s is created on its disk: %s", directory, err.strerror)
        yield
    finally:
        os.close(fd)  # LMDB has opened the file itself
        if path.is_symlink():
            with contextlib.suppress(OSError):  # the next start removes it
                path.unlink()
