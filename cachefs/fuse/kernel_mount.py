"""Serves a mount with our own session, under a supervisor, which mounts and keeps it alive."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from cachefs.core import messages as m
from cachefs.core.errors import CacheFSError
from cachefs.fuse import mounting
from cachefs.fuse.kernel.session import KernelSession
from cachefs.fuse.supervisor import wire as w
from cachefs.fuse.vfs import Vfs

if TYPE_CHECKING:
    from cachefs.client.connection import Connection
    from cachefs.fuse.client import Client

log = logging.getLogger("cachefs.client")

REPORT_S: Final = 1.0


async def serve(client: Client, conn: Connection, vfs: Vfs, warning: str) -> None:
    """Waits for the supervisor's order to serve, then serves until the mount ends or the client
    retires. A failure leaves the mount for a successor."""
    assert client.link is not None
    served = KernelMountServer(client, conn, vfs)
    client.link.say(w.Ready(warning))
    await client.link.take()
    await served.run()


class KernelMountServer:
    """A mount while this process serves it."""

    def __init__(self, client: Client, conn: Connection, vfs: Vfs) -> None:
        assert client.link is not None
        self._client = client
        self._link = client.link
        self._conn = conn
        self._vfs = vfs
        self._session: KernelSession
        self._sent: m.MountFacts | None = None
        self._sent_epoch = 0  # epoch of the connection
        self._is_retired = False

    async def run(self) -> None:
        """Serves until the mount ends or a successor takes over."""
        link, client = self._link, self._client
        self._session = KernelSession(
            self._vfs, client.runs, link.fuse_fd, link.table, link.negotiated
        )
        device = mounting.device_of(client.spec)
        link.note_device(device)
        client.spec = msgspec.structs.replace(client.spec, device=device)
        link.on_retire = client.on_leave = self._retire
        async with trio.open_nursery() as nursery:
            await client.start_tasks(nursery, self._vfs, device)
            # Not before: whoever reads the record may send a signal at once.
            if client.spec.successor:
                client.record.keep()
            else:
                client.record.write()
            nursery.start_soon(link.run)
            if client.covers is not None:
                client.covers.mounted(device)
                if client.spec.successor:
                    client.covers.distrusted()
            nursery.start_soon(self._report)
            self._send_facts()
            link.say(w.Serving())
            log.info("%s is ready at %s", client.spec.source.url, client.spec.mountpoint)
            try:
                await self._session.serve(link.takeover)
            finally:
                link.lock.release()
            self._end()
            nursery.cancel_scope.cancel()

    def _end(self) -> None:
        """Reports the end of the session: retired, or unmounted."""
        if self._is_retired:
            log.info("a successor serves the mount now")
            return self._link.say(w.Retired())
        log.info("the mount is gone")
        self._uncover_aborted()
        self._client.leave()

    def _uncover_aborted(self) -> None:
        """Removes the cover of an aborted mount, which would hide that. The mount point of one that
        was unmounted lazily may belong to the next mount, which would take that for an unmount."""
        spec = self._client.spec
        with contextlib.suppress(CacheFSError, OSError):
            if mounting.device_at(spec.mountpoint) == spec.device:
                mounting.uncover_root(spec.mountpoint)

    def _retire(self) -> None:
        self._is_retired = True
        self._session.retire()

    async def _report(self) -> None:
        """Sends changed facts for `cachefs status` to the server; writes a record that is due."""
        while True:
            await trio.sleep(REPORT_S)
            self._send_facts()
            self._client.record.settle()

    def _send_facts(self) -> None:
        if not self._conn.is_connected:  # a message would be dropped
            return
        session = self._session
        facts = m.MountFacts(
            "kernel", session.passthrough, session.why_not, self._link.supervisor, session.facts()
        )
        if facts != self._sent or self._conn.epoch != self._sent_epoch:
            self._sent, self._sent_epoch = facts, self._conn.epoch
            self._conn.post(facts)
