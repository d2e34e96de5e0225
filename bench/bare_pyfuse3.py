"""A bare pyfuse3 loop-back server: the upper bound of any file system on pyfuse3.

`python bench/bare_pyfuse3.py SOURCE MOUNTPOINT` serves SOURCE read-only until it is unmounted or
gets SIGTERM. It does the minimum of a correct server: inode -> path, `os.pread` inline, timeouts of
an hour. It checks, caches and writes nothing.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from typing import Any

import pyfuse3
import trio

TIMEOUT_S = 3600.0


class LoopBack(pyfuse3.Operations):
    """The handlers of a tree of files and directories."""

    supports_dot_lookup = False

    def __init__(self, source: str) -> None:
        super().__init__()
        self._paths: dict[int, str] = {pyfuse3.ROOT_INODE: source}
        self._listings: dict[int, list[tuple[str, os.stat_result]]] = {}

    async def lookup(self, parent: int, name: bytes, ctx: Any) -> pyfuse3.EntryAttributes:
        path = os.path.join(self._paths[parent], os.fsdecode(name))
        try:
            info = os.lstat(path)
        except OSError as err:
            raise pyfuse3.FUSEError(err.errno or errno.EIO) from None
        self._paths[info.st_ino] = path
        return _attributes(info, info.st_ino)

    async def getattr(self, inode: int, ctx: Any) -> pyfuse3.EntryAttributes:
        return _attributes(os.lstat(self._paths[inode]), inode)

    async def open(self, inode: int, flags: int, ctx: Any) -> pyfuse3.FileInfo:
        return pyfuse3.FileInfo(fh=os.open(self._paths[inode], os.O_RDONLY), keep_cache=True)

    async def read(self, fh: int, off: int, size: int) -> bytes:
        return os.pread(fh, size, off)

    async def release(self, fh: int) -> None:
        os.close(fh)

    async def flush(self, fh: int) -> None:
        raise pyfuse3.FUSEError(errno.ENOSYS)

    async def forget(self, inode_list: Any) -> None:
        pass

    async def opendir(self, inode: int, ctx: Any) -> int:
        with os.scandir(self._paths[inode]) as entries:
            self._listings[inode] = [(entry.path, entry.stat()) for entry in entries]
        return inode

    async def readdir(self, fh: int, start_id: int, token: Any) -> None:
        for number, (path, info) in enumerate(self._listings[fh][start_id:], start=start_id + 1):
            name = os.fsencode(os.path.basename(path))
            if not pyfuse3.readdir_reply(token, name, _attributes(info, info.st_ino), number):
                return
            self._paths[info.st_ino] = path

    async def releasedir(self, fh: int) -> None:
        pass

    async def statfs(self, ctx: Any) -> pyfuse3.StatvfsData:
        data = pyfuse3.StatvfsData()
        data.f_bsize = data.f_frsize = 4096
        data.f_blocks = data.f_bfree = data.f_bavail = 1 << 30
        data.f_namemax = 255
        return data


def _attributes(info: os.stat_result, inode: int) -> pyfuse3.EntryAttributes:
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = inode
    entry.st_mode = info.st_mode
    entry.st_nlink = 1 if stat.S_ISREG(info.st_mode) else info.st_nlink
    entry.st_uid = info.st_uid
    entry.st_gid = info.st_gid
    entry.st_size = info.st_size
    entry.st_blocks = info.st_blocks
    entry.st_mtime_ns = entry.st_ctime_ns = entry.st_atime_ns = info.st_mtime_ns
    entry.entry_timeout = entry.attr_timeout = TIMEOUT_S
    return entry


def main() -> None:
    source, mountpoint = sys.argv[1:]
    options = {"fsname=bare-pyfuse3", "default_permissions", "ro"}
    pyfuse3.init(LoopBack(os.path.abspath(source)), mountpoint, options)
    try:
        trio.run(pyfuse3.main)
    finally:
        pyfuse3.close(unmount=True)


if __name__ == "__main__":
    main()
