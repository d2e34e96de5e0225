"""A master as a process: `python -I -m cachefs.launcher.masterd`, a `MasterSpec` on standard input.

Serves the namespace and the membership of one cluster over HTTP. Says `Started` on standard output
once it answers, or why it never will; ends on SIGTERM, SIGINT and SIGHUP.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import Final

import msgspec

from cachefs.client.credentials import (
    access_of,
    client_context,
    presented_token,
    server_context,
)
from cachefs.core import messages as m
from cachefs.core.access import check_listen, join_address, parse_address
from cachefs.core.cluster import DEFAULT_PORT
from cachefs.core.errors import CacheFSError
from cachefs.core.model import UfsSpec
from cachefs.core.specs import MasterSpec, Started
from cachefs.launcher import collecting
from cachefs.launcher.logs import log_to
from cachefs.launcher.peer_calls import PeerCalls
from cachefs.launcher.ready import ReadyPipe
from cachefs.launcher.serving import limit_end, quit_now, stop_event
from connectors.base import Connector
from connectors.compose import open_connector
from connectors.meter import Meter
from master.namespace import Master
from master.server.app import MasterServer
from worker.machine import allow_many_descriptors

log = logging.getLogger("cachefs.master")

ANYWHERE: Final = ("", "0.0.0.0", "::")


class Process:
    """One master from its start to its end."""

    def __init__(self, spec: MasterSpec) -> None:
        self._spec = spec

    async def run(self, ready: ReadyPipe) -> None:
        """Until a signal. Raises the typed error of a start that failed; nothing is open then."""
        spec = self._spec
        stop = stop_event()
        access = access_of(spec.security)
        host, port = parse_address(spec.listen, DEFAULT_PORT)
        check_listen(host, has_tokens=not access.is_open)
        context = server_context(spec.security)
        token, peers_ssl = presented_token(spec.security), client_context(spec.security, "https://")
        master = await asyncio.to_thread(Master.open_empty, spec.store_dir)
        peers = PeerCalls(token, peers_ssl)
        try:
            server = MasterServer(
                master,
                listen=(host, port),
                open_connector=self._connector,
                authorize=access.check,
                ssl_context=context,
                peers=peers,
                lost_after_s=spec.lost_after_s,
            )
            await self._attach(master)
            port = await server.start()
            try:
                scheme = "http" if context is None else "https"
                shown = "127.0.0.1" if host in ANYWHERE else host
                url = f"{scheme}://{join_address(shown, port)}"
                log.info("serving %s at %s", spec.store_dir, url)
                collecting.settle()
                ready.say(Started(os.getpid(), url=url))
                checking = asyncio.ensure_future(self._check(master))
                master.start_probes()
                await stop.wait()
                checking.cancel()
            finally:
                limit_end()
                await server.stop()
        finally:
            await peers.close()
            await master.close()
            log.info("stopped")

    def _connector(self, source: UfsSpec) -> Connector:
        return open_connector(source, deadline_s=self._spec.origin_deadline_s, meter=Meter())

    async def _attach(self, master: Master) -> None:
        """The sources that the store has. One whose connector cannot be made is served from what is
        known of it."""
        for path, source in master.recorded():
            try:
                connector: Connector | CacheFSError
                connector = await asyncio.to_thread(self._connector, source)
            except CacheFSError as err:
                connector = err
            master.attach_recorded(path, connector)

    async def _check(self, master: Master) -> None:
        """Answers go out meanwhile."""
        for warning in await master.check_sources():
            log.warning("%s", warning)


def main() -> int:
    """Entry point of the process."""
    spec = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=MasterSpec)
    ready = ReadyPipe()
    allow_many_descriptors()  # each worker has connections here
    log_to(spec.log_file, spec.log_level, to_stderr=spec.log_to_stderr)
    try:
        asyncio.run(Process(spec).run(ready))
    except CacheFSError as err:
        log.error("%s", err.one_line())
        ready.say(Started(os.getpid(), failure=m.failure_of(err)))
        return 1
    return 0


if __name__ == "__main__":
    quit_now(main())
