"""Reads files of a cache whose disk may hang, from the test's loop, without holding up the loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading

from tests.unit.worker.rig import NAMESPACE
from worker.cache.cache import Cache
from worker.cache.grants import Grant


async def pread(fd: int, size: int, offset: int) -> bytes | None:
    """None when the disk does not give it within a second."""
    found: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()

    def take(data: bytes) -> None:
        if not found.done():
            found.set_result(data)

    def read() -> None:
        data = os.pread(fd, size, offset)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(take, data)

    threading.Thread(target=read, daemon=True).start()
    try:
        return await asyncio.wait_for(found, 1.0)
    except TimeoutError:
        return None


class HangReader:
    """Reads one file as the FUSE client does: what the disk does not give is requested anew."""

    def __init__(self, worker: Cache, ino: int, grant: Grant) -> None:
        self.worker = worker
        self.ino = ino
        self.grant = grant
        self.past = False

    async def read(self, offset: int, size: int) -> bytes:
        found = bytearray()
        end = min(offset + size, self.grant.size)
        while offset + len(found) < end:
            found += await self._part(offset + len(found), end - offset - len(found))
        return bytes(found)

    async def _part(self, offset: int, size: int) -> bytes:
        if self.grant.complete and not self.past:
            assert self.grant.fd is not None
            return await self._from(self.grant.fd, size, offset)
        if self.grant.complete:
            self.close()
            self.grant = await self.worker.open(NAMESPACE, self.ino, past_tier=True)
        ensured, segment = await self.worker.ensure(
            self.grant.handle, offset, size, past_tier=self.past
        )
        size = min(size, ensured.end - offset)
        if segment is None:
            assert self.grant.fd is not None
            return await self._from(self.grant.fd, size, offset)
        try:
            return await self._from(segment, size, offset - ensured.base)
        finally:
            os.close(segment)

    async def _from(self, fd: int, size: int, offset: int) -> bytes:
        data = await pread(fd, size, offset)
        if data is None:
            self.past = True
            return b""
        return data

    @classmethod
    async def open(cls, worker: Cache, ino: int) -> HangReader:
        return cls(worker, ino, await worker.open(NAMESPACE, ino))

    def close(self) -> None:
        if self.grant.fd is not None:
            os.close(self.grant.fd)
        self.worker.release(self.grant.handle)


async def read_past_hangs(worker: Cache, ino: int) -> bytes:
    """Returns a whole file."""
    client = await HangReader.open(worker, ino)
    data = await client.read(0, client.grant.size)
    client.close()
    return data
