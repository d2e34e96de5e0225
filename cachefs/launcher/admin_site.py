"""The admin API of an embedded server, on a unix socket (`cachefs mount --admin-socket PATH`): the
same app as a master's, over the masters and the worker of this process. Imports aiohttp only when
the option is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Final

import cachefs
from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.access import EVERYTHING, Caller
from cachefs.core.errors import BadConfig, DeadlineExceeded, InUse, ProtocolError, Unsupported
from cachefs.core.install import install_command
from cachefs.core.model import ContentId, UfsSpec

if TYPE_CHECKING:
    from aiohttp import web

    from connectors.base import Connector
    from master.namespace import Master
    from master.server.admin.at import Backend
    from worker.cache.cache import Cache

STOP_S: Final = 2.0
ANSWER_S: Final = 140.0
BACKLOG: Final = 64
PROBE_S: Final = 1.0
_NOT_HERE: Final = (c.AddUfs, c.RemoveUfs, c.Register, c.Heartbeat, c.Leave, c.Work)


class Admin:
    """The backends of the app: one for each mounted source, in the order of their mounts."""

    def __init__(
        self,
        masters: Callable[[], list[Master]],
        worker: Cache,
        status: Callable[[], dict[str, Any]],
    ) -> None:
        self._masters = masters
        self._worker = worker
        self._status = status
        self._known: dict[bytes, _Namespace] = {}

    def backends(self) -> list[Backend]:
        found = []
        for master in self._masters():
            namespace = self._known.get(master.namespace)
            if namespace is None:
                namespace = _Namespace(master, self._worker, self._status)
                self._known[master.namespace] = namespace
            found.append(namespace.backend)
        return found

    async def close(self) -> None:
        for namespace in self._known.values():
            await namespace.close()


class _Namespace:
    """The calls of one source, answered as by a cluster's master."""

    def __init__(self, master: Master, worker: Cache, status: Callable[[], dict[str, Any]]) -> None:
        from master.server.admin.at import Backend
        from master.server.calls import Calls
        from master.server.single_worker import SingleWorkerMembership

        workers = SingleWorkerMembership(lambda: _row(worker))
        self._status = status
        self._calls = Calls(master, workers, _no_source)
        master.load_jobs.follow(lambda: None)  # the one worker gets all tasks
        admit = self._calls.sources.admit_store
        lose = master.mounts.lose_events
        self.backend = Backend(master.namespace, self._ask, admit, lose, workers, _Local(worker))

    async def close(self) -> None:
        await self._calls.close()

    async def _ask(self, call: c.Call, caller: Caller) -> m.Message:
        if isinstance(call, _NOT_HERE):
            raise Unsupported("this server has only mounted sources", remedy="use `cachefs mount`")
        if isinstance(call, c.MasterStatus):
            return c.MasterStatusReply(self._status())
        answer = self._calls.answer_nowait(call, caller)
        if answer is not None:
            return answer
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._calls.answer(call, caller)
        except TimeoutError as err:
            raise DeadlineExceeded(f"no answer within {ANSWER_S:g} s") from err


class _Local:
    """Calls to the worker of this process, in the form of a master's calls to its workers."""

    def __init__(self, worker: Cache) -> None:
        self._worker = worker

    async def ask(self, url: str, call: c.Have | c.Drop) -> c.Answer:
        contents = [ContentId.of_key(key) for key in call.contents]
        if isinstance(call, c.Drop):
            freed = await self._worker.free(contents)
            return c.Dropped(freed.files, freed.bytes, freed.busy_files)
        if isinstance(call, c.Have):
            return await self._worker.serving.had(one.key for one in contents)
        raise ProtocolError(f"{type(call).__name__} is no call of a worker")


def _no_source(source: UfsSpec) -> Connector:
    raise Unsupported("this server has only mounted sources", remedy="use `cachefs mount`")


def _row(worker: Cache) -> c.WorkerRow:
    from master.server.single_worker import WORKER
    from worker.cache.status import facts

    status = worker.status()
    return c.WorkerRow(
        WORKER,
        "",
        socket.gethostname(),
        "serving",
        1.0,
        int(status["limit_bytes"]),
        int(status["used_bytes"]),
        epoch=0,
        settled=0,
        seen_s=0.0,
        version=cachefs.__version__,
        facts=facts(status),
    )


@contextlib.asynccontextmanager
async def admin_site(path: str, make: Callable[[], Admin]) -> AsyncIterator[None]:
    """Answers at a socket of mode 0600 until the block ends; does nothing for "". Raises BadConfig
    (the socket cannot be created, a missing extra), InUse (another process answers there)."""
    if not path:
        yield
        return
    try:
        from aiohttp import web

        from cachefs.core.admin import API
        from master.server.admin.app import AdminApp
    except ImportError as err:
        remedy = f"install it: {install_command('cluster')}"
        raise BadConfig("--admin-socket needs the extra `cluster`", remedy=remedy) from err
    admin = make()
    app = AdminApp(admin.backends, lambda request: EVERYTHING, on_loopback=False)

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        if request.path == API or request.path.startswith(f"{API}/"):
            return await app.handle(request)
        return web.Response(status=404, text="no such page\n")

    listener = await asyncio.to_thread(_listen, path)
    identity = _identity(path)
    runner = web.ServerRunner(web.Server(answer, access_log=None), shutdown_timeout=STOP_S)
    await runner.setup()
    try:
        await web.SockSite(runner, listener, backlog=BACKLOG).start()
        yield
    finally:
        if _identity(path) == identity:
            with contextlib.suppress(OSError):
                os.unlink(path)
        await runner.cleanup()
        await admin.close()


def _listen(path: str) -> socket.socket:
    """Returns a bound socket of mode 0600, on which `start` then listens, not before. Blocks."""
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.setblocking(False)
    except OSError as err:
        listener.close()
        raise BadConfig(
            f"--admin-socket: {err.strerror or err}", path=path, remedy="choose another path"
        ) from err
    return listener


def _remove_stale(path: str) -> None:
    """Removes the stale socket of a dead server. Raises BadConfig, InUse."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise BadConfig("--admin-socket: a file is there", path=path)
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_S)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except OSError as err:
            raise BadConfig(f"--admin-socket: {err.strerror or err}", path=path) from err
    raise InUse("--admin-socket: another process answers there", path=path)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        info = os.lstat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino
