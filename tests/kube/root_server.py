"""A thread that serves the root directory of every mount in a holder: it is empty."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import threading
from typing import Final

from cachefs.core.errors import CacheFSError
from cachefs.fuse.deposits import HolderClient
from cachefs.fuse.kernel import codec

_BUFFER_BYTES: Final = 2 << 20
_POLL_MS: Final = 20
_SILENT: Final = (codec.Op.FORGET, codec.Op.BATCH_FORGET, codec.Op.INTERRUPT, codec.Op.DESTROY)


class RootServer:
    """The server, from its start to `close`, which closes its descriptors of /dev/fuse."""

    def __init__(self, holder: str) -> None:
        self._holder = holder
        self._stop = threading.Event()
        self.adopts = True  # False: further mounts get no answer
        self._devices: dict[str, int] = {}
        self.opcodes: list[int] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends. Idempotent."""
        self._stop.set()
        self._thread.join(10)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                with contextlib.suppress(CacheFSError):  # the holder is away
                    if self.adopts:
                        self._adopt()
                self._serve()
        finally:
            for fd in self._devices.values():
                os.close(fd)

    def _adopt(self) -> None:
        with HolderClient(self._holder) as holder:
            for key in holder.claimants().keys() - self._devices.keys():
                found = holder.get(key)
                if found is None:
                    continue
                _, fuse_fd, table_fd = found
                os.close(table_fd)
                if stat.S_ISCHR(os.fstat(fuse_fd).st_mode):
                    os.set_blocking(fuse_fd, False)
                    self._devices[key] = fuse_fd
                else:  # a test has deposited another file
                    os.close(fuse_fd)

    def _serve(self) -> None:
        poll = select.poll()
        for fd in self._devices.values():
            poll.register(fd, select.POLLIN)
        for fd, events in poll.poll(_POLL_MS):
            if events & select.POLLIN:
                self._answer(fd)
            else:  # the mount has ended
                key = next(key for key, value in self._devices.items() if value == fd)
                os.close(self._devices.pop(key))

    def _answer(self, fd: int) -> None:
        try:
            buffer = os.read(fd, _BUFFER_BYTES)
        except OSError:
            return  # taken back, or the mount has ended
        _, opcode, unique, *_ = codec.IN_HEADER.unpack_from(buffer)
        self.opcodes.append(opcode)
        if opcode not in _SILENT:
            with contextlib.suppress(FileNotFoundError):  # the caller was interrupted
                os.write(fd, _reply(opcode, unique))


def _reply(opcode: int, unique: int) -> bytes:
    match opcode:
        case codec.Op.GETATTR:
            return codec.ATTR_REPLY.pack(
                codec.ATTR_REPLY.size, 0, unique, 0, 0, 0,
                1, 0, 0, 0, 0, 0, 0, 0, 0, stat.S_IFDIR | 0o755, 2, 0, 0, 0, 4096, 0,
            )  # fmt: skip
        case codec.Op.STATFS:
            return codec.statfs_reply(unique, 0, 0, 4096, 255)
        case codec.Op.OPENDIR:
            return codec.open_reply(unique, 1, 0, 0)
        case codec.Op.READDIR | codec.Op.READDIRPLUS:
            return codec.data_header(unique, 0)
        case codec.Op.RELEASEDIR:
            return codec.error_reply(unique, 0)
        case codec.Op.LOOKUP:
            return codec.error_reply(unique, errno.ENOENT)
    return codec.error_reply(unique, errno.ENOSYS)
