"""A master as a process: `python -I -m cachefs.launcher.masterd`, a `MasterSpec` on standard input.

Serves the namespace and the membership of one cluster over HTTP. Writes `Started` to standard
output when it answers or cannot start. Ends on SIGTERM, SIGINT and SIGHUP.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import Final

import msgspec

from cachefs.client.certificate_file import CertificateFile
from cachefs.client.credentials import client_context, presents_to
from cachefs.client.token_file import TokenFile
from cachefs.core.access import check_listen, join_address, parse_address
from cachefs.core.cluster import DEFAULT_PORT
from cachefs.core.errors import CacheFSError
from cachefs.core.model import UfsSpec
from cachefs.core.specs import MasterSpec, Started
from cachefs.launcher import gc_tuning, tokens
from cachefs.launcher.directories import check_own
from cachefs.launcher.logs import log_to
from cachefs.launcher.peer_calls import PeerCalls
from cachefs.launcher.ready import ReadyPipe
from cachefs.launcher.serving import (
    limit_shutdown,
    quit_now,
    refresh_certificate,
    refresh_token_file,
    stop_event,
)
from cachefs.launcher.state import StateHome
from connectors.base import Connector
from connectors.compose import open_connector
from connectors.meter import Meter
from master.namespace import Master
from master.server.app import MasterServer
from worker.runtime.process_limits import allow_many_descriptors

log = logging.getLogger("cachefs.master")

ANYWHERE: Final = ("", "0.0.0.0", "::")


class _OwnToken:
    """The token that a master creates in its state home, if the spec requests it. A master on any
    free port draws a token and assigns it once the port is known."""

    def __init__(self, spec: MasterSpec, port: int) -> None:
        """Creates or draws the token. Raises as `tokens.make`."""
        self.security = spec.security
        self._home = StateHome(spec.token_home)
        self._open_home = spec.open_home
        self._drawn = ""
        if spec.token_home:
            file = tokens.make(self._home, port) if port else tokens.draw(self._home)
            self._drawn = "" if port else file
            self.security = msgspec.structs.replace(spec.security, token_file=file, own_token=True)

    def listens(self, port: int) -> str:
        """Assigns the token to the port on which this master now listens, which voids the token of
        the port's last master. Returns the path of the token file."""
        if self._open_home:
            tokens.remove(StateHome(self._open_home), port)
        if self._drawn:
            tokens.keep(self._home, self._drawn, port)
            self._drawn = ""
            return str(tokens.path_of(self._home, port))
        return self.security.token_file

    def close(self) -> None:
        """Removes a drawn token that was not assigned to a port."""
        if self._drawn:
            os.unlink(self._drawn)


class Process:
    """The process of one master."""

    def __init__(self, spec: MasterSpec) -> None:
        self._spec = spec

    async def run(self, ready: ReadyPipe) -> None:
        """Serves until a signal. Raises the typed error of a failed start; nothing is open then."""
        stop = stop_event()
        host, port = parse_address(self._spec.listen, DEFAULT_PORT)
        own = _OwnToken(self._spec, port)
        try:
            accepted = TokenFile(own.security.token_file)
            check_listen(host, has_tokens=not accepted.is_open)
            check_own(self._spec.store_dir, trust=self._spec.trust_directories)
            master = await asyncio.to_thread(Master.open_empty, self._spec.store_dir)
            try:
                master.limit_waits(self._spec.origin_deadline_s)
                master.background.listings_per_s = self._spec.background_listings
                await self._serve(master, own, accepted, ready, stop)
            finally:
                await master.close()
                log.info("stopped")
        finally:
            own.close()

    async def _serve(
        self,
        master: Master,
        own: _OwnToken,
        accepted: TokenFile,
        ready: ReadyPipe,
        stop: asyncio.Event,
    ) -> None:
        spec, security = self._spec, own.security
        certificate, peers_ssl = CertificateFile(security), client_context(security, "https://")
        peers = PeerCalls(accepted.headers, peers_ssl, presents_to(security))
        try:
            server = MasterServer(
                master,
                listen=parse_address(spec.listen, DEFAULT_PORT),
                open_connector=self._connector,
                authorize=None if accepted.is_open else accepted.check,
                ssl_context=certificate.context,
                peers=peers,
                lost_after_s=spec.lost_after_s,
                certificate=certificate.facts,
            )
            await self._attach(master)
            port = await server.start()
            try:
                accepted.path = own.listens(port)
                url = self._url(port, is_plain=certificate.context is None)
                log.info("serving %s at %s", spec.store_dir, url)
                gc_tuning.settle()
                ready.say(Started(os.getpid(), url=url))
                beside = [
                    asyncio.ensure_future(self._check(master)),
                    asyncio.ensure_future(refresh_token_file(accepted)),
                    asyncio.ensure_future(refresh_certificate(certificate)),
                ]
                master.start_probes()
                await stop.wait()
                for task in beside:
                    task.cancel()
            finally:
                limit_shutdown()
                await server.stop()
        finally:
            await peers.close()

    def _url(self, port: int, *, is_plain: bool) -> str:
        host, _ = parse_address(self._spec.listen, DEFAULT_PORT)
        shown = "127.0.0.1" if host in ANYWHERE else host
        return f"{'http' if is_plain else 'https'}://{join_address(shown, port)}"

    def _connector(self, source: UfsSpec) -> Connector:
        return open_connector(source, deadline_s=self._spec.origin_deadline_s, meter=Meter())

    async def _attach(self, master: Master) -> None:
        """Attaches the sources in the store. A source whose connector cannot be created is served
        from the stored metadata."""
        for path, source in master.mounts.recorded():
            try:
                connector: Connector | CacheFSError
                connector = await asyncio.to_thread(self._connector, source)
            except CacheFSError as err:
                connector = err
            master.mounts.attach(path, connector)

    async def _check(self, master: Master) -> None:
        """Checks the sources and logs warnings, while the master already answers."""
        for warning in await master.mounts.check():
            log.warning("%s", warning)


def main() -> int:
    spec = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=MasterSpec)
    ready = ReadyPipe()
    log_to(spec.log_file, spec.log_level, to_stderr=spec.log_to_stderr)

    def serve() -> None:
        allow_many_descriptors()  # each worker has connections here
        asyncio.run(Process(spec).run(ready))

    return ready.run(serve, log)


if __name__ == "__main__":
    quit_now(main())
