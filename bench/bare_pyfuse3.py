"""The least that a pyfuse3 file system can do: a read-only loop-back over a local folder.

    python -m bench.bare_pyfuse3 FOLDER MOUNTPOINT

It does nothing but what the kernel asks: inode number -> path, `os.pread` in the event loop, an hour
of time-outs. So it is the ceiling of any file system on pyfuse3. Ends when it is unmounted.
"""

from __future__ import annotations

import os
import stat
import sys

import pyfuse3
import trio

VALID_S = 3600.0


class LoopBack(pyfuse3.Operations):  # type: ignore[misc]
    """Inode numbers are those of the folder's file system; the root is pyfuse3's."""

    enable_writeback_cache = False

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._root = os.lstat(folder).st_ino
        self._paths: dict[int, bytes] = {pyfuse3.ROOT_INODE: os.fsencode(folder)}
        self._listings: dict[int, list[tuple[bytes, os.stat_result]]] = {}

    def _attributes(self, found: os.stat_result) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        at_root = found.st_ino == self._root
        entry.st_ino = pyfuse3.ROOT_INODE if at_root else found.st_ino
        for name in ("st_mode", "st_nlink", "st_uid", "st_gid", "st_rdev", "st_size"):
            setattr(entry, name, getattr(found, name))
        for name in ("st_atime_ns", "st_mtime_ns", "st_ctime_ns"):
            setattr(entry, name, getattr(found, name))
        entry.st_blksize, entry.st_blocks = 1 << 20, found.st_blocks
        entry.entry_timeout = entry.attr_timeout = VALID_S
        return entry

    def _stat(self, path: bytes) -> os.stat_result:
        try:
            return os.lstat(path)
        except OSError as err:
            raise pyfuse3.FUSEError(err.errno) from err

    async def getattr(self, inode: int, ctx: object = None) -> pyfuse3.EntryAttributes:
        return self._attributes(self._stat(self._paths[inode]))

    async def lookup(self, parent: int, name: bytes, ctx: object = None) -> pyfuse3.EntryAttributes:
        path = os.path.join(self._paths[parent], name)
        entry = self._attributes(self._stat(path))
        self._paths[entry.st_ino] = path
        return entry

    async def opendir(self, inode: int, ctx: object) -> int:
        with os.scandir(self._paths[inode]) as entries:
            self._listings[inode] = [(e.name, e.stat(follow_symlinks=False)) for e in entries]
        return inode

    async def readdir(self, handle: int, start: int, token: object) -> None:
        folder = self._paths[handle]
        for index, (name, found) in enumerate(self._listings[handle][start:], start + 1):
            entry = self._attributes(found)
            if not pyfuse3.readdir_reply(token, name, entry, index):
                return
            self._paths[entry.st_ino] = os.path.join(folder, name)

    async def releasedir(self, handle: int) -> None:
        self._listings.pop(handle, None)

    async def open(self, inode: int, flags: int, ctx: object) -> pyfuse3.FileInfo:
        if stat.S_IMODE(flags & os.O_ACCMODE) != os.O_RDONLY:
            raise pyfuse3.FUSEError(30)  # EROFS
        return pyfuse3.FileInfo(fh=os.open(self._paths[inode], os.O_RDONLY), keep_cache=True)

    async def read(self, handle: int, offset: int, size: int) -> bytes:
        return os.pread(handle, size, offset)

    async def release(self, handle: int) -> None:
        os.close(handle)


def main(folder: str, mountpoint: str) -> None:
    options = set(pyfuse3.default_options) | {"fsname=bare", "ro", "max_read=1048576"}
    pyfuse3.init(LoopBack(folder), mountpoint, options)
    try:
        trio.run(pyfuse3.main)
    finally:
        pyfuse3.close(unmount=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
