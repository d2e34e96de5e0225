"""A bare server on /dev/fuse with passthrough: the upper bound of warm opens for a Python server.

`python -m bench.bare_kernel SOURCE MOUNTPOINT` serves the tree below SOURCE, read-only, until it is
unmounted or gets SIGTERM. It needs root and Linux 6.9. It answers INIT, LOOKUP, GETATTR, OPEN,
RELEASE, OPENDIR, READDIR and RELEASEDIR only. A file stays registered for passthrough after its
first open. The server checks nothing, evicts nothing, and cannot be replaced while it runs.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import struct
import sys
from collections.abc import Callable
from typing import Final

from cachefs.fuse.kernel import codec
from cachefs.fuse.kernel.codec import Op, OpenFlag
from cachefs.fuse.kernel.negotiation import negotiate

ROOT: Final = 1
TIMEOUT_S: Final = 3600
PAGES: Final = 128
BUFFER_BYTES: Final = (PAGES + 1) * 4096
BACKING_OPEN: Final = 0x4010E501
MS_RDONLY: Final = 1
READ: Final = struct.Struct("<QQI")  # fh offset size
OPENED: Final = int(OpenFlag.PASSTHROUGH | OpenFlag.NOFLUSH)

Handler = Callable[[int, int, int], bytes]  # unique, nodeid, length -> reply


class Server:
    """One mount. Nodeids are the inode numbers of SOURCE, except that of its root."""

    def __init__(self, source: str, fd: int) -> None:
        self._fd = fd
        self._buffer = bytearray(BUFFER_BYTES)
        self._paths: dict[int, str] = {ROOT: source}
        self._backing: dict[int, int] = {}
        self._handlers: dict[int, Handler] = {
            Op.LOOKUP: self._lookup,
            Op.GETATTR: self._getattr,
            Op.OPEN: self._open,
            Op.RELEASE: self._done,
            Op.OPENDIR: self._opendir,
            Op.READDIR: self._readdir,
            Op.RELEASEDIR: self._done,
            Op.INIT: self._init,
        }

    def serve(self) -> None:
        """Serves requests until the unmount."""
        fd, buffer, handlers = self._fd, self._buffer, self._handlers
        silent = (Op.FORGET, Op.BATCH_FORGET, Op.INTERRUPT)
        while True:
            try:
                os.readv(fd, [buffer])
            except OSError as err:
                if err.errno == errno.ENODEV:
                    return
                if err.errno in (errno.ENOENT, errno.EINTR):
                    continue
                raise
            length, opcode, unique, nodeid, _, _, _, _, _ = codec.IN_HEADER.unpack_from(buffer)
            handler = handlers.get(opcode)
            if handler is not None:
                os.write(fd, handler(unique, nodeid, length))
            elif opcode not in silent:
                os.write(fd, codec.error_reply(unique, errno.ENOSYS))

    def _init(self, unique: int, nodeid: int, length: int) -> bytes:
        request = bytes(self._buffer[:length])
        values, reply = negotiate(request, may_passthrough="", pages_limit=PAGES)
        if not values.passthrough:
            raise SystemExit(values.why_not)
        return reply

    def _lookup(self, unique: int, nodeid: int, length: int) -> bytes:
        name = codec.name_in(self._buffer, length)
        path = f"{self._paths[nodeid]}/{os.fsdecode(name)}"
        try:
            info = os.lstat(path)
        except OSError as err:
            return codec.error_reply(unique, err.errno or errno.EIO)
        self._paths[info.st_ino] = path
        return codec.ENTRY_REPLY.pack(
            codec.ENTRY_REPLY.size, 0, unique,
            info.st_ino, 0, TIMEOUT_S, TIMEOUT_S, 0, 0, *_attributes(info, info.st_ino),
        )  # fmt: skip

    def _getattr(self, unique: int, nodeid: int, length: int) -> bytes:
        attributes = _attributes(os.lstat(self._paths[nodeid]), nodeid)
        size = codec.ATTR_REPLY.size
        return codec.ATTR_REPLY.pack(size, 0, unique, TIMEOUT_S, 0, 0, *attributes)

    def _open(self, unique: int, nodeid: int, length: int) -> bytes:
        backing_id = self._backing.get(nodeid)
        if backing_id is None:
            file = os.open(self._paths[nodeid], os.O_RDONLY)
            argument = bytearray(codec.BACKING_MAP.pack(file, 0, 0))
            backing_id = self._backing[nodeid] = fcntl.ioctl(self._fd, BACKING_OPEN, argument)
            os.close(file)
        return codec.open_reply(unique, 0, OPENED, backing_id)

    def _opendir(self, unique: int, nodeid: int, length: int) -> bytes:
        return codec.open_reply(unique, 0, 0, 0)

    def _readdir(self, unique: int, nodeid: int, length: int) -> bytes:
        _, offset, room = READ.unpack_from(self._buffer, codec.HEADER_BYTES)
        path, data = self._paths[nodeid], b""
        for number, name in enumerate(sorted(os.listdir(path))[offset:], start=offset + 1):
            info = os.lstat(f"{path}/{name}")
            entry = codec.dirent(info.st_ino, number, info.st_mode >> 12, os.fsencode(name))
            if len(data) + len(entry) > room:
                break
            data += entry
        return codec.data_header(unique, len(data)) + data

    def _done(self, unique: int, nodeid: int, length: int) -> bytes:
        return codec.error_reply(unique, 0)


def _attributes(info: os.stat_result, ino: int) -> tuple[int, ...]:
    seconds, ns = divmod(info.st_mtime_ns, 10**9)
    links = 1 if stat.S_ISREG(info.st_mode) else info.st_nlink
    return (
        ino, info.st_size, info.st_blocks, seconds, seconds, seconds, ns, ns, ns,
        info.st_mode, links, info.st_uid, info.st_gid, 0, 1 << 20, 0,
    )  # fmt: skip


def mount(mountpoint: str) -> int:
    """Mounts, and returns the descriptor of /dev/fuse."""
    fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,default_permissions".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"bare", os.fsencode(mountpoint), b"fuse.bare", MS_RDONLY, options):
        number = ctypes.get_errno()
        raise SystemExit(f"the kernel refuses the mount: {os.strerror(number)}")
    return fd


def main() -> None:
    source, mountpoint = sys.argv[1:]
    Server(os.path.abspath(source), mount(mountpoint)).serve()


if __name__ == "__main__":
    main()
