"""A blocking client of the admin API for the command line. It talks to a master, or to an embedded
server through its admin socket. One connection, one request at a time.

`AdminClient.call` accepts the same messages as a session with a node's server and as a master's
`HttpClient`, so that a command works with each of them. The API's bodies: `cachefs.core.admin`.
"""

from __future__ import annotations

import http.client
import secrets
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from cachefs.client.http import RUNNING, UNIX, HttpClient
from cachefs.core import admin as a
from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.admin_sources import NewSource, Source, SourceAdded, SourceChange, Sources
from cachefs.core.admin_syncs import NewSync, Sync
from cachefs.core.errors import ProtocolError
from cachefs.core.health import HealthProblem
from cachefs.core.jobs import JobSpec
from cachefs.core.message import DECODE_ERRORS
from cachefs.core.model import Inode, Kind, NamespaceId, UfsSpec
from cachefs.core.placement import Member, View
from cachefs.core.policies import Policy
from cachefs.core.specs import Security

CALL_TIMEOUT_S: Final = 30.0
ADD_TIMEOUT_S: Final = 150.0  # the master checks that the source exists
WALK_TIMEOUT_S: Final = 60.0  # a page ends after 10 s and the pending replies of workers
_T = TypeVar("_T", bound=m.Message)
_S = TypeVar("_S", bound=msgspec.Struct)
Values = Mapping[str, str | int | None]


class AdminClient:
    """A client of the process at `url` (http(s)://HOST:PORT), or at the socket `unix:PATH`. A
    context manager. Every method raises the typed error of the reply, Unreachable, DeadlineExceeded
    and ProtocolError. Paths are bytes below the namespace root."""

    def __init__(
        self, url: str, security: Security, *, name: str = "the master", remedy: str = ""
    ) -> None:
        """Sends nothing yet. Raises BadConfig, AccessDenied. `remedy`: for a process that does not
        answer."""
        self._http = HttpClient(url, security, name=name, remedy=remedy or RUNNING)
        self._name = name

    @classmethod
    def of_socket(cls, path: str) -> AdminClient:
        """Returns a client of an embedded server's admin socket."""
        return cls(UNIX + path, Security(), name=f"the server at {path}")

    @property
    def url(self) -> str:
        return self._http.url

    def close(self) -> None:
        """Idempotent."""
        self._http.close()

    def __enter__(self) -> AdminClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- any resource ----------------------------------------------------------------------------

    def get(
        self, resource: str, answer: type[_S], query: Values | None = None, timeout_s: float = 0.0
    ) -> _S:
        """Returns a resource. `resource`: its path below the API's, "/jobs/7"."""
        return self._decoded(self._request("GET", resource, query, timeout_s=timeout_s), answer)

    def send(
        self,
        method: str,
        resource: str,
        answer: type[_S],
        body: msgspec.Struct | None = None,
        query: Values | None = None,
        *,
        key: str = "",
        timeout_s: float = 0.0,
    ) -> _S:
        """Sends a POST, PATCH, … request. `key`: makes a submit idempotent."""
        return self._decoded(self._request(method, resource, query, body, key, timeout_s), answer)

    def delete(self, resource: str, query: Values | None = None) -> None:
        self._request("DELETE", resource, query)

    def pages(self, resource: str, answer: type[_S], query: Values | None = None) -> Iterator[_S]:
        """Yields every page of a list."""
        next: str | None = None
        while True:
            page = self.get(resource, answer, {**(query or {}), "next": next}, WALK_TIMEOUT_S)
            yield page
            next = getattr(page, "next")  # noqa: B009  every list has one
            if next is None:
                return

    def _request(
        self,
        method: str,
        resource: str,
        query: Values | None = None,
        body: msgspec.Struct | None = None,
        key: str = "",
        timeout_s: float = 0.0,
    ) -> bytes:
        given = {name: str(value) for name, value in (query or {}).items() if value is not None}
        path = a.API + resource + (f"?{urllib.parse.urlencode(given)}" if given else "")
        headers = {a.KEY_HEADER: key} if key else {}
        data = None
        if method != "GET":
            headers["Content-Type"] = a.JSON_TYPE
            data = None if body is None else msgspec.json.encode(body)
        status, reply_headers, reply = self._http.exchange(
            method, path, data, timeout_s or CALL_TIMEOUT_S, headers
        )
        if status >= http.client.BAD_REQUEST:
            raise self._error(status, reply_headers.get("Content-Type", ""), reply)
        return reply

    def _error(self, status: int, kind: str, reply: bytes) -> Exception:
        if kind.partition(";")[0] != a.PROBLEM_TYPE:
            return ProtocolError(
                f"{self._name} returned status {status} and an unknown reply",
                path=self.url,
                remedy="check that it is a CacheFS process, not older than this one",
            )
        problem = self._decoded(reply, a.Problem)
        return m.error_of(
            m.Failure(problem.code, problem.cause, problem.remedy, problem.path, problem.request_id)
        )

    def _decoded(self, reply: bytes, answer: type[_S]) -> _S:
        try:
            return msgspec.json.decode(reply, type=answer)
        except DECODE_ERRORS as err:
            raise ProtocolError(
                f"{self._name} returned an invalid reply: {err}", path=self.url
            ) from err

    # ---- as the messages of `cachefs.core` -------------------------------------------------------

    def call(self, body: m.Message, answer: type[_T]) -> _T:
        """Sends a message of `_CALLS`, and returns the reply, which must be an `answer`."""
        send = _CALLS.get(type(body))
        if send is None:
            raise ProtocolError(f"the admin API has no {type(body).__name__}")
        reply = send(self, body)
        if not isinstance(reply, answer):
            raise ProtocolError(f"the reply is a {type(reply).__name__}, not a {answer.__name__}")
        return reply

    def about(self) -> a.About:
        return self.get("", a.About)

    @property
    def namespace(self) -> NamespaceId:
        """The namespace of every call, even if a message names another one. Sends a request."""
        return NamespaceId(bytes.fromhex(self.about().namespace))

    def status(self) -> dict[str, Any]:
        """Returns the content of `cachefs status`."""
        return self.get("/status", a.ClusterStatus).status

    def health(self, timeout_s: float = 0.0) -> list[HealthProblem]:
        """Returns the current problems, errors first."""
        return self.get("/health", a.Health, timeout_s=timeout_s).items

    def sources(self) -> list[c.UfsRow]:
        return [
            one.row()
            for page in self.pages("/sources", Sources, {"limit": a.MAX_LIMIT})
            for one in page.items
        ]

    def add_source(
        self, path: bytes, source: UfsSpec, sync_interval_s: float, push: str = ""
    ) -> SourceAdded:
        body = NewSource(a.text_of(path), source.url, source.options, sync_interval_s, push)
        return self.send("POST", "/sources", SourceAdded, body, timeout_s=ADD_TIMEOUT_S)

    def change_source(self, call: c.SetUfs) -> c.UfsRow:
        body = SourceChange(
            call.options, [*call.unset], call.sync_interval_s, call.push, call.push_interval_s
        )
        query = {"path": a.text_of(call.path)}
        found = self.send("PATCH", "/sources", Source, body, query, timeout_s=ADD_TIMEOUT_S)
        return found.row()

    def remove_source(self, path: bytes, *, force: bool = False) -> None:
        """Raises InUse for pinned paths without `force`."""
        self.delete("/sources", {"path": a.text_of(path), "force": "true" if force else None})

    def workers(self) -> c.WorkerTable:
        """Returns the workers. `view.before` has the members while blocks move, else none."""
        rows: list[c.WorkerRow] = []
        for page in self.pages("/workers", a.Workers, {"limit": a.MAX_LIMIT}):
            rows += [one.row() for one in page.items]
            epoch, owning, moving = page.epoch, {*page.members}, page.moving
        members = tuple(Member(r.id, r.url, r.weight, r.host) for r in rows if r.id in owning)
        return c.WorkerTable(View(epoch, members, members if moving else ()), rows)

    def drain(self, worker: str, *, undo: bool = False) -> None:
        self.send("PATCH", _of("/workers", worker), a.Worker, a.WorkerChange(draining=not undo))

    def remove_worker(self, worker: str) -> None:
        self.delete(_of("/workers", worker))

    def set_policy(self, path: bytes, policy: Policy, unset: Sequence[str] = ()) -> Policy:
        """Returns the policy set there afterwards."""
        body, query = a.PolicyChange(policy, [*unset]), {"path": a.text_of(path)}
        return self.send("PATCH", "/policies", a.PolicyAt, body, query).said

    def policies_at(self, path: bytes) -> m.PoliciesAt:
        return self.get("/policies", a.PolicyAt, {"path": a.text_of(path)}).message()

    def quotas(self, path: bytes) -> list[tuple[bytes, int, int]]:
        """Returns (path, quota, used) in bytes, of the quotas of a path and of those below it."""
        pages = self.pages("/quotas", a.Quotas, {"path": a.text_of(path)})
        return [
            (a.bytes_of(one.path), one.quota_bytes, one.used_bytes)
            for page in pages
            for one in page.items
        ]

    def usage(self, path: bytes) -> a.Usage:
        """Returns the sums over all files at or below a path that the master knows."""
        where = a.text_of(path)
        pages = [*self.pages("/usage", a.Usage, {"path": where})]
        return a.Usage(
            where,
            sum(page.files for page in pages),
            sum(page.size_bytes for page in pages),
            sum(page.cached_bytes for page in pages),
            _all_silent(pages),
            unlisted_directories=pages[-1].unlisted_directories,
        )

    def free(self, path: bytes) -> a.FreedBytes:
        """Frees a path on every worker that replies. Raises NotFound, InUse (pinned)."""
        pages: list[a.FreedBytes] = []
        next: str | None = None
        while not pages or next is not None:
            body = a.FreeRequest(a.text_of(path), next)
            pages.append(self.send("POST", "/free", a.FreedBytes, body, timeout_s=WALK_TIMEOUT_S))
            next = pages[-1].next
        return a.FreedBytes(
            sum(page.files for page in pages),
            sum(page.bytes for page in pages),
            sum(page.busy_files for page in pages),
            _all_silent(pages),
        )

    # ---- jobs and syncs --------------------------------------------------------------------------

    def submit_job(self, spec: JobSpec, key: str = "", *, more: bool = False) -> m.JobSubmitted:
        """Submits a job. `key`: see `cachefs.core.messages.SubmitJob`. Without one a key is drawn,
        so that a retry after a lost reply makes no second job."""
        body = a.NewJob(
            [a.text_of(path) for path in spec.paths],
            spec.bandwidth_bytes_s,
            spec.hold_s,
            spec.verify,
            spec.priority,  # type: ignore[arg-type]
            more,
        )
        key = key or secrets.token_hex(16)
        found = self.send("POST", "/jobs", a.SubmittedJob, body, key=key)
        return m.JobSubmitted(found.job, found.updated)

    def add_job_paths(
        self, job: int, first: int, paths: Sequence[bytes], *, last: bool = False
    ) -> None:
        body = a.JobPaths(first, [a.text_of(path) for path in paths], last)
        self.send("POST", f"/jobs/{job}/paths", a.Job, body)

    def job(self, job: int) -> m.JobReply:
        return m.JobReply(self.get(f"/jobs/{job}", a.Job).shown())

    def jobs(self, before: int = 0, limit: int = a.DEFAULT_LIMIT) -> m.JobTable:
        page = self.get("/jobs", a.Jobs, {"limit": limit, "next": before or None})
        return m.JobTable([one.shown() for one in page.items], int(page.next or 0))

    def job_failures(self, job: int, after: int = 0) -> m.JobFailures:
        page = self.get(f"/jobs/{job}/failures", a.FailedFiles, {"next": after or None})
        return m.JobFailures([one.failure() for one in page.items], int(page.next or 0))

    def control_job(self, job: int, action: str) -> m.JobReply:
        """Changes a job's state. `action`: "stop", "resume", "retry", "forget"."""
        if action == "forget":
            ended = self.job(job)
            self.delete(f"/jobs/{job}")
            return ended
        found = self.send("POST", _of(f"/jobs/{job}", action), a.Job, a.Nothing())
        return m.JobReply(found.shown())

    def start_sync(self, path: bytes, *, recursive: bool, dry_run: bool) -> m.SyncReply:
        body = NewSync(a.text_of(path), recursive, dry_run)
        return self.send("POST", "/syncs", Sync, body).reply()

    def sync(self, sync: int, after: int = 0, *, stop: bool = False) -> m.SyncReply:
        """Returns the state of a sync. `stop`: stops it first."""
        if stop:
            self.delete(f"/syncs/{sync}")
        return self.get(f"/syncs/{sync}", Sync, {"next": after or None}).reply()


def _all_silent(pages: Sequence[a.Usage | a.FreedBytes]) -> list[str]:
    return [*dict.fromkeys(line for page in pages for line in page.silent)]


def _of(resource: str, name: str) -> str:
    return f"{resource}/{urllib.parse.quote(name, safe='')}"


# ---- messages ------------------------------------------------------------------------------------


def _greeted(client: AdminClient, call: c.Greeting) -> c.Greeted:
    found = client.about()
    namespace = NamespaceId(bytes.fromhex(found.namespace))
    return c.Greeted(namespace, found.version, found.protocol, epoch=found.epoch)


def _added(client: AdminClient, call: c.AddUfs) -> c.UfsAdded:
    found = client.add_source(call.path, call.source, call.sync_interval_s, call.push)
    return c.UfsAdded(Inode(found.ino, Kind.DIRECTORY), found.warning)


def _done(work: Callable[[AdminClient, Any], None]) -> Callable[[AdminClient, Any], m.Message]:
    def send(client: AdminClient, call: Any) -> m.Message:
        work(client, call)
        return m.Done()

    return send


_CALLS: Final[dict[type[m.Message], Callable[[AdminClient, Any], m.Message]]] = {
    c.Greeting: _greeted,
    c.MasterStatus: lambda client, _: c.MasterStatusReply(client.status()),
    c.ListUfs: lambda client, _: c.UfsTable(client.sources()),
    c.AddUfs: _added,
    c.SetUfs: lambda client, call: c.UfsChanged(client.change_source(call)),
    c.RemoveUfs: _done(lambda client, call: client.remove_source(call.path, force=call.force)),
    c.ListWorkers: lambda client, _: client.workers(),
    c.Drain: _done(lambda client, call: client.drain(call.worker, undo=call.undo)),
    c.RemoveWorker: _done(lambda client, call: client.remove_worker(call.worker)),
    m.SetPolicy: lambda client, call: m.PolicySet(
        client.set_policy(call.path, call.policy, call.unset)
    ),
    m.GetPolicies: lambda client, call: client.policies_at(call.path),
    m.SubmitJob: lambda client, call: client.submit_job(call.spec, call.key, more=call.more),
    m.AddJobPaths: _done(
        lambda client, call: client.add_job_paths(call.job, call.first, call.paths, last=call.last)
    ),
    m.GetJob: lambda client, call: client.job(call.job),
    m.ListJobs: lambda client, call: client.jobs(call.before, call.limit),
    m.GetJobFailures: lambda client, call: client.job_failures(call.job, call.after),
    m.ControlJob: lambda client, call: client.control_job(call.job, call.action),
    m.StartSync: lambda client, call: client.start_sync(
        call.path, recursive=call.recursive, dry_run=call.dry_run
    ),
    m.GetSync: lambda client, call: client.sync(call.sync, call.after, stop=call.stop),
}
