"""A file system that can hang: a loop-back FUSE server of its own process, stopped by SIGSTOP.

    with hanging_disk(tmp_path) as disk:
        ...          # use disk.path
        disk.hang()  # every request waits from now on
        disk.go_on()

Whoever is inside a request meanwhile waits; at the end it goes on first, and is killed then.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.services.late_command import LateCommand

REPOSITORY = Path(__file__).parents[2]
START_LIMIT_S = 20.0
LEAVE_S = 3.0
HANGS_S = 120.0


class HangingDisk:
    """The file system at `path`; its bytes lie in `below`."""

    def __init__(self, path: Path, below: Path, process: subprocess.Popen[bytes]) -> None:
        self.path = path
        self.below = below
        self._process = process
        self._late: LateCommand | None = None

    def hang(self) -> None:
        """For `HANGS_S` at most: if all threads of this process wait for the disk, a test fails."""
        self._late = LateCommand(HANGS_S, "kill", "-CONT", str(self._process.pid))
        os.kill(self._process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        """Idempotent."""
        os.kill(self._process.pid, signal.SIGCONT)
        if self._late is not None:
            self._late.cancel()


@contextlib.contextmanager
def hanging_disk(root: Path) -> Iterator[HangingDisk]:
    """Mounted below `root` until the block ends, whatever is stuck in it then."""
    path, below = root / "disk", root / "below"
    path.mkdir()
    below.mkdir()
    command = [sys.executable, "-m", "tests.services.hanging_disk", str(below), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY) as process:
        assert process.stdout is not None
        disk = HangingDisk(path, below, process)
        try:
            assert process.stdout.readline() == b"ready\n"
            yield disk
        finally:
            disk.go_on()
            _unmount(path)
            process.kill()
            process.wait(START_LIMIT_S)


def _unmount(path: Path) -> None:
    """Once nobody is inside a request any more: a thread in a page of a mapped file would be killed
    with its whole process (SIGBUS). What somebody has open all the same goes lazily."""
    until = time.monotonic() + LEAVE_S
    while subprocess.run(
        ["umount", str(path)], capture_output=True, timeout=START_LIMIT_S
    ).returncode:
        if time.monotonic() >= until:
            subprocess.run(["umount", "-l", str(path)], check=False, timeout=START_LIMIT_S)
            return
        time.sleep(0.05)


def serve(below: str, mountpoint: str) -> None:
    """The process."""
    import pyfuse3
    import trio

    class LoopBack(pyfuse3.Operations):
        """Inodes by O_PATH descriptors, which stay open to the end: links and unlinks need no
        bookkeeping."""

        supports_dot_lookup = False

        def __init__(self) -> None:
            super().__init__()
            self._paths = {pyfuse3.ROOT_INODE: os.open(below, os.O_PATH)}
            self._listings: dict[int, list[tuple[int, bytes, Any]]] = {}
            self._mtimes_ns: dict[int, int] = {}

        def _known(self, parent: int, name: bytes) -> Any:
            try:
                fd = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=self._paths[parent])
            except OSError as err:
                raise pyfuse3.FUSEError(err.errno or errno.EIO) from None
            ino = os.fstat(fd).st_ino
            if ino in self._paths:
                os.close(fd)
            else:
                self._paths[ino] = fd
            return self._attributes(ino)

        def _attributes(self, ino: int) -> Any:
            info = os.fstat(self._paths[ino])
            entry = pyfuse3.EntryAttributes()
            for name in ("mode", "nlink", "uid", "gid", "size", "blocks"):
                setattr(entry, f"st_{name}", getattr(info, f"st_{name}"))
            entry.st_ino = ino
            entry.st_atime_ns, entry.st_ctime_ns = info.st_atime_ns, info.st_ctime_ns
            # A new mtime would make the kernel drop all pages of the file (FUSE_AUTO_INVAL_DATA).
            # A local disk keeps them: a mapped file can be read while it hangs.
            entry.st_mtime_ns = self._mtimes_ns.setdefault(ino, info.st_mtime_ns)
            entry.entry_timeout = entry.attr_timeout = 0.0  # everything is asked
            return entry

        def _file(self, ino: int) -> str:
            return f"/proc/self/fd/{self._paths[ino]}"

        async def lookup(self, parent: int, name: bytes, ctx: Any) -> Any:
            return self._known(parent, name)

        async def getattr(self, inode: int, ctx: Any) -> Any:
            return self._attributes(inode)

        async def setattr(self, inode: int, attr: Any, fields: Any, fh: Any, ctx: Any) -> Any:
            if fields.update_size:
                os.truncate(self._file(inode), attr.st_size)
            if fields.update_mode:
                os.chmod(self._file(inode), stat.S_IMODE(attr.st_mode))
            return self._attributes(inode)

        async def open(self, inode: int, flags: int, ctx: Any) -> Any:
            keep = flags & (os.O_ACCMODE | os.O_TRUNC)
            return pyfuse3.FileInfo(fh=os.open(self._file(inode), keep))

        async def create(self, parent: int, name: bytes, mode: int, flags: int, ctx: Any) -> Any:
            keep = flags & (os.O_ACCMODE | os.O_TRUNC | os.O_EXCL)
            try:
                fd = os.open(name, keep | os.O_CREAT, mode, dir_fd=self._paths[parent])
            except OSError as err:
                raise pyfuse3.FUSEError(err.errno or errno.EIO) from None
            return pyfuse3.FileInfo(fh=fd), self._known(parent, name)

        async def read(self, fh: int, off: int, size: int) -> bytes:
            return os.pread(fh, size, off)

        async def write(self, fh: int, off: int, buf: bytes) -> int:
            return os.pwrite(fh, buf, off)

        async def flush(self, fh: int) -> None:
            raise pyfuse3.FUSEError(errno.ENOSYS)

        async def fsync(self, fh: int, datasync: bool) -> None:
            os.fsync(fh)

        async def fsyncdir(self, fh: int, datasync: bool) -> None:
            pass

        async def release(self, fh: int) -> None:
            os.close(fh)

        async def forget(self, inode_list: Any) -> None:
            pass

        async def mkdir(self, parent: int, name: bytes, mode: int, ctx: Any) -> Any:
            try:
                os.mkdir(name, mode, dir_fd=self._paths[parent])
            except OSError as err:
                raise pyfuse3.FUSEError(err.errno or errno.EIO) from None
            return self._known(parent, name)

        async def unlink(self, parent: int, name: bytes, ctx: Any) -> None:
            os.unlink(name, dir_fd=self._paths[parent])

        async def rmdir(self, parent: int, name: bytes, ctx: Any) -> None:
            os.rmdir(name, dir_fd=self._paths[parent])

        async def rename(
            self, old: int, name: bytes, new: int, new_name: bytes, flags: int, ctx: Any
        ) -> None:
            folders = {"src_dir_fd": self._paths[old], "dst_dir_fd": self._paths[new]}
            os.rename(name, new_name, **folders)

        async def link(self, inode: int, new: int, name: bytes, ctx: Any) -> Any:
            try:
                os.link(self._file(inode), name, dst_dir_fd=self._paths[new], follow_symlinks=True)
            except OSError as err:
                raise pyfuse3.FUSEError(err.errno or errno.EIO) from None
            return self._known(new, name)

        async def opendir(self, inode: int, ctx: Any) -> int:
            names = sorted(os.fsencode(name) for name in os.listdir(self._file(inode)))
            rows = [(n, name, self._known(inode, name)) for n, name in enumerate(names, 1)]
            self._listings[inode] = rows
            return inode

        async def readdir(self, fh: int, start_id: int, token: Any) -> None:
            for number, name, attributes in self._listings[fh][start_id:]:
                if not pyfuse3.readdir_reply(token, name, attributes, number):
                    return

        async def releasedir(self, fh: int) -> None:
            pass

        async def statfs(self, ctx: Any) -> Any:
            info, data = os.statvfs(below), pyfuse3.StatvfsData()
            for name in ("bsize", "frsize", "blocks", "bfree", "bavail", "files", "ffree"):
                setattr(data, f"f_{name}", getattr(info, f"f_{name}"))
            data.f_favail, data.f_namemax = info.f_favail, info.f_namemax
            return data

    pyfuse3.init(LoopBack(), mountpoint, {"fsname=hanging-disk"})
    print("ready", flush=True)
    try:
        trio.run(pyfuse3.main)
    finally:
        pyfuse3.close(unmount=True)


if __name__ == "__main__":
    serve(*sys.argv[1:])
