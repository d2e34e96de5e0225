"""The master's admin API for the controller's event loop: blocking calls on separate threads.

Calls that wait for an origin (attach, policies) have other threads than those that do not: sources
that cannot be reached must not delay the loads of others. A cancelled call continues in its
thread; every call may be repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import msgspec

from cachefs.client.admin import AdminClient
from cachefs.core import admin as a
from cachefs.core.admin_sources import Sources
from cachefs.core.errors import (
    CacheFSError,
    DeadlineExceeded,
    InUse,
    NotFound,
    ProtocolError,
    Unreachable,
)
from cachefs.core.jobs import JobSpec
from cachefs.core.model import UfsSpec
from cachefs.core.policies import FIELDS, Policy
from cachefs.core.specs import Security
from cachefs.kube.dataset import SYNC_INTERVAL_S
from cachefs.kube.steps import Attached, Use

QUICK_THREADS: Final = 4
SLOW_THREADS: Final = 32
_T = TypeVar("_T")


class MasterCalls:
    """The calls, from its creation to `close`. Belongs to one event loop. Methods raise the typed
    errors of `AdminClient`."""

    def __init__(self, url: str, security: Security) -> None:
        """Raises BadConfig, AccessDenied for the files of `security`."""
        self._url = url
        self._security = security
        self._clients = threading.local()
        self._quick = ThreadPoolExecutor(QUICK_THREADS, "master")
        self._slow = ThreadPoolExecutor(SLOW_THREADS, "master-slow")
        AdminClient(url, security).close()  # for its errors

    def close(self) -> None:
        """Starts no further call, and waits for none."""
        for pool in (self._quick, self._slow):
            pool.shutdown(wait=False, cancel_futures=True)

    def is_away(self, err: CacheFSError) -> bool:
        """Returns whether a call failed because of the master, and not because of an origin."""
        is_silent = isinstance(err, Unreachable | DeadlineExceeded | ProtocolError)
        return is_silent and err.path == self._url

    async def sources(self) -> dict[str, Attached]:
        """Returns the sources of the cluster by path."""
        return await self._run(self._quick, _sources)

    async def attach(self, path: str, url: str, options: dict[str, str], push: str = "") -> str:
        """Adds a source; returns a warning or "". Idempotent for the same URL."""
        source = UfsSpec(url, options)
        return await self._run(
            self._slow,
            lambda c: c.add_source(a.bytes_of(path), source, SYNC_INTERVAL_S, push).warning,
        )

    async def detach(self, path: str) -> None:
        """Removes a source. Idempotent. The origin is not changed."""
        await self._run(
            self._quick,
            lambda c: _unless_gone(lambda: c.remove_source(a.bytes_of(path), force=True)),
        )

    async def policy(self, path: str) -> Policy:
        """Returns the policies that are set at a path, but for the pins of freezes."""
        said = await self._run(self._quick, lambda c: c.policies_at(a.bytes_of(path)).said)
        return msgspec.structs.replace(said, frozen_by=None)

    async def set_policy(self, path: str, policy: Policy) -> None:
        """Sets these policies at a path and no others. Idempotent."""
        unset = [name for name in FIELDS if getattr(policy, name) is None]
        await self._run(self._slow, lambda c: c.set_policy(a.bytes_of(path), policy, unset))

    async def unset_policy(self, path: str) -> None:
        """Removes the policies at a path. Idempotent."""
        await self._run(
            self._slow,
            lambda c: _unless_gone(lambda: c.set_policy(a.bytes_of(path), Policy(), [*FIELDS])),
        )

    async def submit(self, job: JobSpec, key: str) -> int:
        """Submits a load; returns the number of its job. Idempotent by the key."""
        return await self._run(self._quick, lambda c: c.submit_job(job, key).job)

    async def job(self, number: int) -> a.Job:
        """Returns a job. Raises NotFound."""
        return await self._run(self._quick, lambda c: c.get(f"/jobs/{number}", a.Job))

    async def end_jobs(self, path: str) -> None:
        """Stops and forgets every job of this path alone. Idempotent."""
        await self._run(self._quick, lambda c: _end_jobs(c, path))

    async def use(self, path: str) -> Use | None:
        """Returns how much below a path is cached, by walking its names; None if a worker did not
        answer."""
        found = await self._run(self._slow, lambda c: c.usage(a.bytes_of(path)))
        return None if found.silent else Use(found.files, found.size_bytes, found.cached_bytes)

    async def _run(self, pool: ThreadPoolExecutor, work: Callable[[AdminClient], _T]) -> _T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(pool, lambda: work(self._client()))

    def _client(self) -> AdminClient:
        """Returns the client of this thread."""
        client: AdminClient | None = getattr(self._clients, "client", None)
        if client is None:
            client = self._clients.client = AdminClient(self._url, self._security)
        return client


def _sources(client: AdminClient) -> dict[str, Attached]:
    pages = client.pages("/sources", Sources, {"limit": a.MAX_LIMIT})
    return {one.path: Attached(one.url, one.warning) for page in pages for one in page.items}


def _unless_gone(work: Callable[[], object]) -> None:
    with contextlib.suppress(NotFound):
        work()


def _end_jobs(client: AdminClient, path: str) -> None:
    for job in [*_jobs_of(client, path)]:
        with contextlib.suppress(NotFound):  # it was forgotten in between
            _end_job(client, job)


def _end_job(client: AdminClient, job: a.Job) -> None:
    if not job.state.has_ended:
        with contextlib.suppress(InUse):  # it has ended in between
            client.control_job(job.job, "stop")
    client.delete(f"/jobs/{job.job}")


def _jobs_of(client: AdminClient, path: str) -> Iterable[a.Job]:
    for page in client.pages("/jobs", a.Jobs, {"limit": a.MAX_LIMIT}):
        yield from (job for job in page.items if job.paths == [path] and job.path_count == 1)
