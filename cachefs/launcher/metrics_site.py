"""`GET /metrics` of an embedded server, which has no other port: on loopback, open to every user
of this machine."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from cachefs.core.access import is_loopback, parse_address
from cachefs.core.errors import BadConfig
from cachefs.core.install import install_command

PATH: Final = "/metrics"
STOP_S: Final = 2.0
MOST_CONNECTIONS: Final = 64


@contextlib.asynccontextmanager
async def metrics_site(address: str, status: Callable[[], dict[str, Any]]) -> AsyncIterator[int]:
    """Answers Prometheus at HOST:PORT until the block ends; yields the port, 0 for an address of
    "". Raises BadConfig: no address of this machine, not a loopback address, a missing extra."""
    if not address:
        yield 0
        return
    host, port = parse_address(address, 0)
    if not is_loopback(host):
        raise BadConfig(
            f"--metrics {address}: other machines would reach it",
            remedy="use a loopback address (127.0.0.1:9400), with an agent on this machine",
        )
    try:
        from aiohttp import web

        from cachefs.network.guard import Guard, GuardedServer, GuardedSite, RefusedRequest
        from worker.metrics import exposition
    except ImportError as err:
        remedy = f"install it: {install_command('cluster')}"
        raise BadConfig("metrics need the extra `cluster`", remedy=remedy) from err
    text = exposition(status)
    guard = Guard(None, on_loopback=True, most=MOST_CONNECTIONS)

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        try:
            guard.check_host(request)
        except RefusedRequest as err:
            return web.Response(status=err.status, text=err.one_line() + "\n")
        if request.path != PATH or request.method != "GET":
            return web.Response(status=404, text="no such page\n")
        body, kind = text()
        return web.Response(body=body, headers={"Content-Type": kind})

    runner = web.ServerRunner(GuardedServer(answer, guard), shutdown_timeout=STOP_S)
    await runner.setup()
    try:
        try:
            await GuardedSite(runner, host, port).start()
        except OSError as err:
            remedy = "choose another --metrics"
            raise BadConfig(f"cannot listen on {address}: {err.strerror}", remedy=remedy) from err
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
