"""Replies whose body is a part of a file, sent by threads: with `sendfile`, or through TLS.

A thread sends only while the receiver takes data. The event loop, not a thread, waits for a stalled
receiver: a stopped process may stall many requests, which would occupy all threads.
"""

from __future__ import annotations

import asyncio
import os
import select
import time
from typing import Final

from aiohttp import web

from worker.cache.peer_reads import Pages
from worker.runtime.threads import Threads

SILENCE_S: Final = 20.0  # the timeout of a receiver that takes no data
SEND_S: Final = 180.0  # the timeout of the whole body
PATIENCE_S: Final = 0.2  # the total time that a thread waits for the receiver in one call
CHUNK_BYTES: Final = 1 << 20  # through TLS


class PagesResponse(web.StreamResponse):
    """The reply with pages. `send` closes them in any case."""

    def __init__(self, pages: Pages, threads: Threads, headers: dict[str, str]) -> None:
        super().__init__(status=200, headers=headers)
        self._pages = pages
        self._threads = threads
        self.content_type = "application/octet-stream"
        self.content_length = pages.size_bytes

    async def send(self, request: web.BaseRequest) -> None:
        """Sends everything. Raises ConnectionError; OSError where no descriptors are left."""
        try:
            fd = os.dup(self._pages.fd)  # the thread may outlive a request that is cancelled
        finally:
            self._pages.close()
        try:
            writer = await self.prepare(request)
            transport = request.transport
            if transport is None or writer is None:
                raise ConnectionResetError("the peer closed the connection")
        except BaseException:
            os.close(fd)
            raise
        await self._send(transport, fd)
        await self.write_eof()

    async def _send(self, transport: asyncio.Transport, fd: int) -> None:
        sock = transport.get_extra_info("socket")
        plain = transport.get_extra_info("sslcontext") is None
        try:
            async with asyncio.timeout(SEND_S):
                if plain and transport.get_write_buffer_size() == 0:
                    await self._send_file(os.dup(sock.fileno()), fd)
                else:
                    await self._write(fd)
        except OSError as err:
            transport.abort()
            raise ConnectionResetError(f"the peer did not receive the pages: {err}") from err
        except BaseException:
            transport.abort()
            raise
        finally:
            os.close(fd)

    async def _send_file(self, sock_fd: int, fd: int) -> None:
        """Sends with `sendfile`. Closes `sock_fd`, which is a duplicate. Raises OSError."""
        pages = self._pages
        offset, end = pages.offset, pages.offset + pages.size_bytes
        try:
            while True:
                fds = _both(sock_fd, fd)  # the thread may outlive this task
                offset = await self._threads.run(_send_some, *fds, offset, end)
                if offset == end:
                    return
                await _until_writable(sock_fd)
        finally:
            os.close(sock_fd)

    async def _write(self, fd: int) -> None:
        pages, done = self._pages, 0
        while done < pages.size_bytes:
            size = min(CHUNK_BYTES, pages.size_bytes - done)
            part = await self._threads.run(_read, os.dup(fd), size, pages.offset + done)
            async with asyncio.timeout(SILENCE_S):
                await self.write(part)
            done += size


def _both(sock_fd: int, fd: int) -> tuple[int, int]:
    """Returns duplicates. Raises OSError."""
    sock_copy = os.dup(sock_fd)
    try:
        return sock_copy, os.dup(fd)
    except OSError:
        os.close(sock_copy)
        raise


async def _until_writable(sock_fd: int) -> None:
    """Waits up to `SILENCE_S` until the socket is writable. Raises TimeoutError."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(sock_fd, ready.set)
    try:
        async with asyncio.timeout(SILENCE_S):
            await ready.wait()
    finally:
        loop.remove_writer(sock_fd)


def _send_some(sock_fd: int, fd: int, offset: int, end: int) -> int:
    """Sends until `end`, or until the receiver has stalled for `PATIENCE_S` in all. Returns the
    offset reached. Runs in a thread; closes both descriptors. Raises OSError."""
    left_s = PATIENCE_S
    try:
        ready = select.poll()
        ready.register(sock_fd, select.POLLOUT)
        while offset < end:
            try:
                sent = os.sendfile(sock_fd, fd, offset, end - offset)
            except BlockingIOError:
                began = time.monotonic()
                if left_s <= 0 or not ready.poll(1000 * left_s):
                    break
                left_s -= time.monotonic() - began
                continue
            if not sent:
                raise OSError("the cache file was truncated")
            offset += sent
        return offset
    finally:
        os.close(fd)
        os.close(sock_fd)


def _read(fd: int, size: int, offset: int) -> bytes:
    """Reads a part of the file. Runs in a thread; closes `fd`. Raises OSError."""
    try:
        data = os.pread(fd, size, offset)
    finally:
        os.close(fd)
    if len(data) != size:
        raise OSError("the cache file was truncated")
    return data
