"""A worker as a process: `python -I -m cachefs.launcher.node`, a `WorkerSpec` on standard input. A
member of one cluster: a cache of several tiers for the mounts of this machine (unix socket) and for
its peers (HTTP).

Writes `Started` to standard output when it is a member or cannot start. Ends on SIGTERM, SIGINT and
SIGHUP; a worker that does not `stay` also ends with the last mount.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import sys
from pathlib import Path
from typing import Final

import msgspec

from cachefs.client.certificate_file import CertificateFile
from cachefs.client.credentials import client_context, presents_to
from cachefs.client.token_file import TokenFile
from cachefs.core.access import check_listen, parse_address
from cachefs.core.addresses import SCHEME, address_of
from cachefs.core.specs import Started, WorkerSpec
from cachefs.core.tiers import TierSpec, parse_tiers
from cachefs.launcher import cache_record, gc_tuning, gil_affinity, malloc_tuning, worker_id
from cachefs.launcher.cluster import node_dir
from cachefs.launcher.directories import check_own
from cachefs.launcher.logs import log_to
from cachefs.launcher.peer_calls import PeerCalls
from cachefs.launcher.ready import ReadyPipe
from cachefs.launcher.reserve_keeper import keep_reserve
from cachefs.launcher.serving import (
    forget_pointer,
    limit_shutdown,
    quit_now,
    refresh_certificate,
    refresh_token_file,
    stop_event,
)
from cachefs.launcher.state import (
    LOG_NAME,
    SOCKET_NAME,
    Pointer,
    private_dir,
    write_pointer,
)
from worker.node import Node, Proof
from worker.server.server import NodeServer

log = logging.getLogger("cachefs.node")

DRAIN_S: Final = 10.0
OWNER_MODE: Final = 0o600  # of the socket
GROUP_UMASK: Final = 0o027
GROUP_MODE: Final = 0o660  # for root without capabilities, in the group of the worker
MOVING_THREADS: Final = ("send-", "ask-", "load-")  # names of threads that mostly move bytes


class NodeProcess:
    """The process of one worker."""

    def __init__(self, spec: WorkerSpec) -> None:
        """Reads the files of its security. Raises BadConfig, AccessDenied."""
        self._spec = spec
        self._tiers: list[TierSpec] = parse_tiers(spec.tiers)
        # `cachefs mount` has checked the directory of a worker that clients restart.
        trust = spec.trust_directories or not spec.stays
        for path in (spec.home, *(tier.path for tier in self._tiers)):
            check_own(path, trust=trust)
        self._directory = node_dir(spec)
        self._tokens = TokenFile(spec.security.token_file)
        self._certificate = CertificateFile(spec.security)
        self._proof = Proof(
            self._tokens.headers,
            authorize=None if self._tokens.is_open else self._tokens.check,
            master_ssl=client_context(spec.security, spec.master),
            peers_ssl=client_context(spec.security, "https://"),
            server_ssl=self._certificate.context,
            presents_to=presents_to(spec.security),
            certificate=self._certificate.facts,
        )
        check_listen(parse_address(spec.listen, 0)[0], has_tokens=not self._tokens.is_open)
        self._paths = [tier.path for tier in self._tiers]
        self._known_id = worker_id.read(self._paths)

    async def run(self, ready: ReadyPipe) -> None:
        """Serves until a stop signal or, without `stay`, the end of the last mount. Raises the
        typed error of a failed start; nothing is open then."""
        stop, proof = stop_event(), self._proof
        async with contextlib.AsyncExitStack() as stack:
            calls = PeerCalls(proof.headers, proof.peers_ssl, proof.presents_to)
            stack.push_async_callback(calls.close)
            node_id = self._known_id or worker_id.draw()
            remember = None if self._known_id else functools.partial(worker_id.write, self._paths)
            node = Node(node_id, self._spec, self._tiers, proof, calls.ask, remember)
            url = await node.start(stack)
            await self._serve(node, ready, stop, url)

    async def _serve(self, node: Node, ready: ReadyPipe, stop: asyncio.Event, url: str) -> None:
        server = node.server
        given = self._spec.socket
        socket_path = Path(given) if given else self._directory / SOCKET_NAME
        server.listen(socket_path, GROUP_MODE if given else OWNER_MODE)
        pointer = Pointer.of_this_process(str(socket_path), stays=self._spec.stays, url=url)
        write_pointer(self._directory, pointer)
        source = f"{SCHEME}{address_of(self._spec.master)}"
        cache_record.note(self._directory, source, self._paths)
        log.info("worker %s at %s, a member of %s", node.id, url, self._spec.master)
        gc_tuning.settle()
        ready.say(Started(os.getpid(), url=url))
        beside = [
            asyncio.ensure_future(_stop_when(stop, server)),
            asyncio.ensure_future(gil_affinity.keep_together(*MOVING_THREADS)),
            asyncio.ensure_future(keep_reserve(self._spec.home)),
            asyncio.ensure_future(refresh_token_file(self._tokens)),
            asyncio.ensure_future(refresh_certificate(self._certificate)),
        ]
        try:
            await server.serve()
        finally:
            limit_shutdown()
            for task in beside:
                task.cancel()
            # No client may find a server that is ending: remove the pointer, then end the sessions.
            forget_pointer(self._directory)
            await server.drain(0.0 if self._spec.stays else DRAIN_S)
            log.info("stopped")


async def _stop_when(stop: asyncio.Event, server: NodeServer) -> None:
    await stop.wait()
    server.request_stop("stop signal")


def main() -> int:
    spec = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=WorkerSpec)
    ready = ReadyPipe(spec.launch_fds)
    malloc_tuning.settle()
    if spec.socket:
        os.umask(GROUP_UMASK)

    def serve() -> None:
        log_dir = private_dir(node_dir(spec) / LOG_NAME)
        log_to(str(Path(log_dir) / "server.log"), spec.log_level, to_stderr=spec.log_to_stderr)
        asyncio.run(NodeProcess(spec).run(ready))

    return ready.run(serve, log)


if __name__ == "__main__":
    quit_now(main())
