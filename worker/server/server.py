"""The node socket: accepts sessions, keeps them, and stops the server when it is unused.

A server runs as long as it has a session of a mount or of a library (plus a grace period), or, if
it `stays`, until `request_stop` is called. Only root and the server's own user may connect
(SO_PEERCRED), whatever the permissions of the socket's directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cachefs
from cachefs.core import messages as m
from cachefs.core.errors import Unreachable
from cachefs.core.model import NamespaceId
from cachefs.core.services import MetadataService, SourceServices
from cachefs.network.unix_sockets import listen_in, peer_credentials
from connectors.idle import close_idle
from worker.prefetch.open_runs import MOST_FILES
from worker.prefetch.prefetcher import Prefetcher
from worker.runtime.log_backoff import LogBackoff
from worker.server.session import Session
from worker.server.takeovers import Takeovers

if TYPE_CHECKING:
    from worker.cache.cache import Cache
    from worker.views.views import Views

log = logging.getLogger(__name__)

FIRST_MOUNT_GRACE_S = 30.0
LAST_MOUNT_GRACE_S = 0.3
LIBRARY_GRACE_S = 10.0  # programs that read without a mount often run one after the other
SUCCESSOR_GRACE_S = 30.0  # for the next client of a mount whose client failed
BACKLOG = 64
ACCEPT_PAUSE_S = 0.2  # after an accept that failed
LOOK_S = 0.25  # between checks for overdue requests and idle connections
WARN_EVERY_S = 10.0  # between log lines about overdue requests


class NodeServer:
    """The sessions of one listening socket."""

    def __init__(
        self,
        worker: Cache,
        sources: SourceServices,
        *,
        stays: bool = False,
        files_ahead: int = MOST_FILES,
        deadline_s: float = 30.0,
        views: Views | None = None,
    ) -> None:
        """`files_ahead`: see `worker.prefetch.open_runs`. `deadline_s`: of a system call on a
        mount, see `worker.server.request_deadlines`. `views`: None for a node without any."""
        self.worker = worker
        self.views = views
        self.ahead = Prefetcher(worker.loading, sources.service, files_ahead)
        self.deadline_s = deadline_s
        self._stays = stays
        # Set by the owner of this server: returns its own status, given that of the cache.
        self.more_status: Callable[[dict[str, Any]], dict[str, Any]] = lambda cache: {}
        self._sources = sources
        self._sessions: set[Session] = set()
        self._takeovers = Takeovers()
        self._listener: socket.socket | None = None
        self._path = Path()  # the name of the listener, and its inode
        self._ino = 0
        self._stop = asyncio.Event()
        self._grace: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._warned_at_s = float("-inf")  # monotonic
        self._started_at = time.time()
        self.passthrough_bytes = 0  # of complete files passed to kernels
        self._pace = LogBackoff()  # of the log lines about accepts that failed
        worker.subscribe_tiers(self._tell_tiers)

    def listen(self, path: Path, mode: int = 0o600) -> None:
        """Binds `path` and starts to accept; replaces a dead socket. `mode` may let other users
        connect, but only root and the server's own user are accepted."""
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            listener = listen_in(directory, path.name, BACKLOG)
        finally:
            os.close(directory)
        os.chmod(path, mode)
        self._listener, self._path, self._ino = listener, path, path.stat().st_ino
        asyncio.get_running_loop().add_reader(listener.fileno(), self._accept)
        self._arm(FIRST_MOUNT_GRACE_S)
        self._look()

    async def serve(self) -> None:
        """Waits for `request_stop`, which an unused server calls too; then closes the listener."""
        await self._stop.wait()
        self.close_listener()

    def request_stop(self, reason: str) -> None:
        """Stops the server. Detaches the mounts, unless it `stays`: they find its successor."""
        log.info("stopping: %s", reason)
        for session in [*self._sessions]:
            if session.role == "fuse" and not self._stays:
                session.send_event(m.Detach(reason))
        self._stop.set()

    def close_listener(self) -> None:
        """Closes the listener, and removes its name unless a successor has it. Idempotent."""
        if self._listener is not None:
            with contextlib.suppress(OSError):  # nobody listens at a name that stays
                if self._path.stat().st_ino == self._ino:
                    self._path.unlink()
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None

    async def drain(self, deadline_s: float) -> None:
        """Gives FUSE sessions time to unmount, then ends all sessions and the prefetch."""
        self.close_listener()
        deadline = time.monotonic() + deadline_s
        while self._mounts() and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        for session in [*self._sessions]:
            session.close()
        if self._looking is not None:
            self._looking.cancel()
        await self.ahead.close()

    # ---- called by sessions ----

    def joined(self, session: Session) -> None:
        """Called at a session's Hello. Raises Unreachable for a mount while the server is stopping:
        the mount then finds, or starts, the next server."""
        if session.follows and self._stop.is_set():
            raise Unreachable("the server is ending", remedy="mount again")
        if session.role == "fuse":
            self._takeovers.joined(session.mountpoint, session.pid)
        if session.follows and self._grace is not None:
            self._grace.cancel()
            self._grace = None

    def forget(self, session: Session) -> None:
        self._sessions.discard(session)
        if session.role == "fuse":
            self._takeovers.left(session.mountpoint, session.pid, is_followed=session.is_followed)
        if session.follows and not self._followers():
            self._arm(_grace_s(session))

    async def attach(self, body: m.Attach) -> m.Attached:
        return await self._sources.attach(body)

    def service(self, namespace: NamespaceId) -> MetadataService:
        """Returns the service of an attached namespace. Raises NotFound."""
        return self._sources.service(namespace)

    def status(self) -> dict[str, Any]:
        mounts = self._mounts()
        clients = [process for session in mounts for process in _processes(session)]
        cache = self.worker.status()
        return {
            "version": cachefs.__version__,
            "protocol": m.PROTOCOL,
            "uptime_s": round(time.time() - self._started_at, 1),
            "processes": [*clients, {"role": "server", "pid": os.getpid()}],
            "mounts": [_mount_status(session) for session in mounts],
            "libraries": [{"pid": s.pid} for s in self._followers() if s not in mounts],
            "sources": self._sources.status(),
            "cache": cache,
            "passthrough_bytes": self.passthrough_bytes,
            "ahead_files": self.ahead.files,
            "views": self.views.status() if self.views is not None else {},
            "takeovers": dict(self._takeovers.counts),
            **self.more_status(cache),
        }

    # ---- inside ----

    def _look(self) -> None:
        """Fails overdue requests, closes idle connections to origins, sends what could not be sent
        of tiers, and schedules the next check."""
        close_idle()
        self.ahead.look()
        now = time.monotonic()
        for session in [*self._sessions]:
            request = session.end_overdue(now)
            if request is not None and now - self._warned_at_s >= WARN_EVERY_S:
                self._warned_at_s = now
                log.warning("no answer within %g s: %s", self.deadline_s, request)
            if session.lacks_tiers:
                session.send_tiers()
        self._looking = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _tell_tiers(self) -> None:
        for session in self._followers():
            session.send_tiers()

    def _mounts(self) -> list[Session]:
        return [session for session in self._sessions if session.role == "fuse"]

    def _followers(self) -> list[Session]:
        """Returns the sessions that keep the server running."""
        return [session for session in self._sessions if session.follows]

    def _arm(self, grace_s: float) -> None:
        if self._stays:
            return
        if self._grace is not None:
            self._grace.cancel()
        self._grace = asyncio.get_running_loop().call_later(grace_s, self._stop_if_unused)

    def _stop_if_unused(self) -> None:
        if not self._followers():
            self.request_stop("no mount left")

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as err:  # e.g. EMFILE: existing sessions continue
            if self._pace.is_due(time.monotonic()):
                log.warning("cannot accept a session, trying again: %s", err.strerror)
            return self._pause_accepting()
        _, uid, _ = peer_credentials(sock)
        if uid not in (0, os.geteuid()):
            log.warning("refused a session of uid %d", uid)
            sock.close()
            return
        self._sessions.add(Session(self, sock))

    def _pause_accepting(self) -> None:
        """Stops accepting for a moment: the backlog would wake the loop all the time."""
        assert self._listener is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener.fileno())
        loop.call_later(ACCEPT_PAUSE_S, self._accept_again)

    def _accept_again(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)


def _grace_s(last: Session) -> float:
    """Returns how long the server runs after its last session."""
    if last.role == "library":
        return LIBRARY_GRACE_S
    return SUCCESSOR_GRACE_S if last.is_followed else LAST_MOUNT_GRACE_S


def _processes(session: Session) -> list[dict[str, Any]]:
    supervisor = session.facts.supervisor if session.facts is not None else 0
    found = [{"role": "supervisor", "pid": supervisor}] if supervisor else []
    return [*found, {"role": "client", "pid": session.pid}]


def _mount_status(session: Session) -> dict[str, Any]:
    status = {
        "mountpoint": session.mountpoint,
        "pid": session.pid,
        "sources": sorted(session.sources.values()),
    }
    facts = session.facts
    if facts is not None:
        status["transport"] = facts.transport
        status["passthrough"] = "yes" if facts.passthrough else f"no: {facts.why_not}"
        status["counters"] = facts.counters
    return status
