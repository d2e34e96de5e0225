"""An answer whose body is a part of a file, sent by a thread: `sendfile`, or through TLS."""

from __future__ import annotations

import asyncio
import os
import select
from typing import Final

from aiohttp import web

from worker.serving import Pages
from worker.threads import Threads

SILENCE_S: Final = 20.0  # a receiver that takes nothing for so long is given up
CHUNK_BYTES: Final = 1 << 20  # through TLS


class PagesResponse(web.StreamResponse):
    """Closes the pages, whatever happens after `send` began."""

    def __init__(self, pages: Pages, threads: Threads, headers: dict[str, str]) -> None:
        super().__init__(status=200, headers=headers)
        self._pages = pages
        self._threads = threads
        self.content_type = "application/octet-stream"
        self.content_length = pages.size_bytes

    async def send(self, request: web.BaseRequest) -> None:
        """Sends everything. Raises ConnectionError."""
        fd = os.dup(self._pages.fd)  # the thread may outlive a request that is cancelled
        self._pages.close()
        try:
            writer = await self.prepare(request)
            transport = request.transport
            if transport is None or writer is None:
                raise ConnectionResetError("the peer is gone")
        except BaseException:
            os.close(fd)
            raise
        await self._send(transport, fd)
        await self.write_eof()

    async def _send(self, transport: asyncio.Transport, fd: int) -> None:
        pages = self._pages
        sock = transport.get_extra_info("socket")
        plain = transport.get_extra_info("sslcontext") is None
        try:
            if plain and transport.get_write_buffer_size() == 0:
                args = os.dup(sock.fileno()), fd, pages.offset, pages.size_bytes
                fd = -1
                await self._threads.run(_send_file, *args)
            else:
                await self._write(fd)
        except OSError as err:
            transport.abort()
            raise ConnectionResetError(f"the peer did not take it: {err}") from err
        except BaseException:
            transport.abort()
            raise
        finally:
            if fd >= 0:
                os.close(fd)

    async def _write(self, fd: int) -> None:
        pages, done = self._pages, 0
        while done < pages.size_bytes:
            size = min(CHUNK_BYTES, pages.size_bytes - done)
            part = await self._threads.run(_read, os.dup(fd), size, pages.offset + done)
            async with asyncio.timeout(SILENCE_S):
                await self.write(part)
            done += size


def _send_file(sock_fd: int, fd: int, offset: int, size_bytes: int) -> None:
    """In a thread; closes both. Raises OSError."""
    try:
        ready = select.poll()
        ready.register(sock_fd, select.POLLOUT)
        end = offset + size_bytes
        while offset < end:
            try:
                sent = os.sendfile(sock_fd, fd, offset, end - offset)
            except BlockingIOError:
                if not ready.poll(1000 * SILENCE_S):
                    raise TimeoutError("nothing is taken") from None
                continue
            if not sent:
                raise OSError("the file is shorter than it was")
            offset += sent
    finally:
        os.close(fd)
        os.close(sock_fd)


def _read(fd: int, size: int, offset: int) -> bytes:
    """In a thread; closes `fd`. Raises OSError."""
    try:
        data = os.pread(fd, size, offset)
    finally:
        os.close(fd)
    if len(data) != size:
        raise OSError("the file is shorter than it was")
    return data
