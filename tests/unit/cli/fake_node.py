"""A node's server as the command line sees it: scripted answers on a real socket, in a thread."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from cachefs.core import errors, policies
from cachefs.core import messages as m
from cachefs.core.jobs import JobFailure, JobStatus
from cachefs.core.model import Inode, Kind, NamespaceId
from master.state.policies import PolicyTable

NAMESPACE = NamespaceId(b"n" * 16)
MTIME_NS = 1_700_000_000 * 10**9
PAGE = 3  # entries: small, so that paging is tested
_encode = msgspec.msgpack.Encoder().encode


class FakeNode:
    """Answers from `files` (path -> size); `cached` (path -> bytes)."""

    def __init__(self, files: dict[bytes, int], cached: dict[bytes, int] | None = None) -> None:
        self.inodes: dict[bytes, Inode] = {b"": Inode(1, Kind.DIRECTORY)}
        for path, size in files.items():
            self._add(path, size)
        self.cached = {self.inodes[path].ino: size for path, size in (cached or {}).items()}
        self.jobs: dict[int, list[JobStatus]] = {}  # what each look at one shows, the last for ever
        self.failed: list[JobFailure] = []
        self.syncs: list[m.SyncReply] = []  # answers, one after the other
        self.hang_ups = 0  # so many questions about jobs and syncs are answered by an end
        self.asked: list[m.Message] = []
        self.namespace = NAMESPACE
        self.status: dict[str, Any] = {"processes": [], "mounts": []}
        self.failure: errors.CacheFSError | None = None
        self.refused: dict[type[m.Message], errors.CacheFSError] = {}
        self.covers = False  # the server knows views
        self.views: list[m.ViewStatus] = []  # answers to Freeze, one after the other
        self.frozen: list[tuple[bytes, bool]] = []
        self.thawed: list[bytes] = []
        self.stopped = threading.Event()
        self.unknown_policies: list[str] = []  # fields that a server of an earlier version drops
        self._policies = PolicyTable()

    def _add(self, path: bytes, size: int) -> None:
        parts = path.split(b"/")
        for depth in range(1, len(parts)):
            folder = b"/".join(parts[:depth])
            self.inodes.setdefault(folder, Inode(len(self.inodes) + 1, Kind.DIRECTORY))
        ino = len(self.inodes) + 1
        self.inodes[path] = Inode(ino, Kind.FILE, size, MTIME_NS, f"etag{ino}", nonce=ino)

    # ---- answers ----

    def answer(self, body: m.Message) -> m.Message:
        self.asked.append(body)
        if self.failure is not None and not isinstance(body, m.Hello):
            return m.failure_of(self.failure)
        if type(body) in self.refused:
            return m.failure_of(self.refused[type(body)])
        match body:
            case m.Hello():
                return m.Welcome(os.getpid(), covers=self.covers)
            case m.Freeze(path=path):
                self.frozen.append((path, body.wait))
                return m.ViewTable([self.views.pop(0) if len(self.views) > 1 else self.views[0]])
            case m.Thaw(path=path):
                self.thawed.append(path)
                return m.Done()
            case m.ListViews():
                return m.ViewTable(self.views)
            case m.Attach():
                return m.Attached(self.namespace, self.inodes[b""])
            case m.Resolve():
                return m.Found(self.inodes.get(body.path), 60.0)
            case m.ListDir():
                return self._list(body)
            case m.CacheState():
                return m.CacheStateReply([self.cached.get(ino, 0) for ino in body.inos])
            case m.Status():
                return m.StatusReply(self.status)
            case m.Free():
                return m.Freed(2, 3 << 20, 1)
            case m.SubmitJob():
                return m.JobSubmitted(7, updated=body.spec.priority == "low")
            case m.AddJobPaths():
                return m.Done()
            case m.GetJob():
                return m.JobReply(self._job(body.job))
            case m.ListJobs():
                return self._list_jobs(body)
            case m.GetJobFailures():
                page = self.failed[body.after : body.after + PAGE]
                more = body.after + PAGE < len(self.failed)
                return m.JobFailures(page, body.after + PAGE if more else 0)
            case m.ControlJob():
                return m.JobReply(self._job(body.job))
            case m.StartSync():
                return self.syncs.pop(0)
            case m.GetSync():
                if not self.syncs:
                    return m.failure_of(errors.NotFound("no such sync"))
                return self.syncs.pop(0)
            case m.SetPolicy():
                unknown = dict.fromkeys(self.unknown_policies)
                change = msgspec.structs.replace(body.policy, **unknown)
                said = policies.merged(self._policies.at(body.path), change, body.unset)
                self._policies.put(body.path, said)
                return m.PolicySet(said)
            case m.GetPolicies():
                return self._policies_at(body.path)
            case m.Detach():
                self.stopped.set()
                return m.Done()
        raise AssertionError(f"unexpected {body}")

    def _job(self, job: int) -> JobStatus:
        if job not in self.jobs:
            raise errors.NotFound(f"no job {job}")
        states = self.jobs[job]
        return states.pop(0) if len(states) > 1 else states[0]

    def _list_jobs(self, body: m.ListJobs) -> m.JobTable:
        older = sorted((n for n in self.jobs if not body.before or n < body.before), reverse=True)
        page = [self.jobs[n][0] for n in older[:PAGE]]
        return m.JobTable(page, page[-1].job if len(older) > PAGE else 0)

    def _policies_at(self, path: bytes) -> m.PoliciesAt:
        table, found = self._policies, self._policies.effective(path)
        below = [m.PolicySaid(*one) for one in table.below(path)]
        policy = msgspec.structs.replace(found.policy, **dict.fromkeys(self.unknown_policies))
        return m.PoliciesAt(
            policy, found.where, table.at(path), below[:1], len(below), [*found.quotas]
        )

    def _list(self, body: m.ListDir) -> m.Listing:
        parent = next(path for path, inode in self.inodes.items() if inode.ino == body.ino)
        prefix = parent + b"/" if parent else b""
        names = sorted(
            path.removeprefix(prefix) + (b"/" if inode.kind is Kind.DIRECTORY else b"")
            for path, inode in self.inodes.items()
            if path and path.startswith(prefix) and b"/" not in path.removeprefix(prefix)
        )
        left = [name for name in names if name > body.after]
        page = [
            m.Dentry(
                name.rstrip(b"/"), msgspec.Raw(_encode(self.inodes[prefix + name.rstrip(b"/")]))
            )
            for name in left[:PAGE]
        ]
        return m.Listing(page, left[PAGE - 1] if len(left) > PAGE else b"", 60.0)

    # ---- the socket ----

    @contextlib.contextmanager
    def listening(self, path: Path) -> Iterator[FakeNode]:
        """Serves until the block ends."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            directory = os.open(path.parent, os.O_RDONLY)
            listener.bind(f"/proc/self/fd/{directory}/{path.name}")
            os.close(directory)
            listener.listen()
            wake, waker = os.pipe()
            thread = threading.Thread(target=self._accept, args=(listener, wake), daemon=True)
            thread.start()
            try:
                yield self
            finally:
                os.close(waker)
                thread.join()
                os.close(wake)

    def _accept(self, listener: socket.socket, wake: int) -> None:
        poll = select.poll()  # descriptors may have any number
        poll.register(listener, select.POLLIN)
        poll.register(wake, select.POLLIN | select.POLLHUP)
        while wake not in (fd for fd, _ in poll.poll()):
            connection, _ = listener.accept()
            with connection:
                self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        while data := connection.recv(m.MAX_FRAME_BYTES):
            frame = m.decode(data)
            if self.hang_ups and isinstance(frame.body, m.GetJob | m.GetSync | m.SubmitJob):
                self.hang_ups -= 1
                return
            connection.send(m.encode(frame.id, self._answered(frame.body)))

    def _answered(self, body: m.Message) -> m.Message:
        try:
            return self.answer(body)
        except errors.CacheFSError as err:
            return m.failure_of(err)
