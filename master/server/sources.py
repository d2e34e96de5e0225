"""The handlers of calls about the sources of a namespace."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.access import Caller
from cachefs.core.errors import (
    AccessDenied,
    BadConfig,
    DeadlineExceeded,
    InUse,
    NotFound,
    Throttled,
)
from cachefs.core.policies import shown
from cachefs.core.ufs import MAX_PUSHED
from master.mounts import OpenConnector
from master.namespace import Master
from master.push.s3_events import paths_below
from master.push.webhook_secrets import WebhookSecrets

log = logging.getLogger("cachefs.master")

MAX_ADDITIONS: Final = 8
MOST_NAMED: Final = 3
COMPARE_S: Final = 30.0  # the wait for the file of a secret

SourceCall = c.GetUfs | c.AddUfs | c.SetUfs | c.PushEvents | c.RemoveUfs | c.ListUfs


class SourceCalls:
    """The handlers of one master."""

    def __init__(self, master: Master, open_connector: OpenConnector) -> None:
        """Keeps `open_connector`, which blocks: threads call it."""
        self._master = master
        self._open_connector = open_connector
        self._additions: set[asyncio.Task[c.UfsAdded]] = set()
        self._secrets = WebhookSecrets()

    async def close(self) -> None:
        """Finishes adding sources."""
        await asyncio.gather(*self._additions, return_exceptions=True)

    async def answer(self, call: SourceCall, caller: Caller) -> m.Message:
        """Returns the reply to a call. Raises the typed errors."""
        return await _ANSWERS[type(call)](self, call, caller)

    async def admit_store(self, path: bytes, secret: str) -> None:
        """Raises AccessDenied unless `secret` is that of the source at a path, for its events."""
        row = self._master.mounts.row(path)
        push = "" if row is None else row.push
        now = time.monotonic()
        if not (push and self._secrets.passed(push, secret, now)):
            await self._compare(push, secret, now)

    async def _compare(self, push: str, secret: str, now: float) -> None:
        try:
            async with asyncio.timeout(COMPARE_S):
                await asyncio.to_thread(self._secrets.check, push, secret, now)
        except TimeoutError as err:
            raise DeadlineExceeded(f"no secret was read within {COMPARE_S:g} s") from err

    async def _find(self, call: c.GetUfs, caller: Caller) -> m.Message:
        source = self._master.ufs(call.key)
        if caller.prefix and not any(row.source.key == call.key for row in self._rows(caller)):
            raise AccessDenied("this source is out of reach of this token")
        return c.UfsFound(source)

    def _rows(self, caller: Caller) -> Iterable[c.UfsRow]:
        """Yields the sources of which the caller may see a part."""
        for row in self._master.mounts.rows():
            root = row.path.strip(b"/")
            if caller.sees(root) or not root or (caller.prefix + b"/").startswith(root + b"/"):
                yield row

    async def _list(self, call: c.ListUfs, caller: Caller) -> m.Message:
        return c.UfsTable(self._master.mounts.rows())

    async def _add(self, call: c.AddUfs, caller: Caller) -> m.Message:
        """Adds a source. Cancellation does not stop the work: the master owns the connector."""
        _check_interval(call.sync_interval_s)
        if len(self._additions) >= MAX_ADDITIONS:
            raise Throttled(f"{MAX_ADDITIONS} sources are being added")
        task = asyncio.ensure_future(self._open_and_add(call))
        self._additions.add(task)
        task.add_done_callback(self._additions.discard)
        return await asyncio.shield(task)

    async def _open_and_add(self, call: c.AddUfs) -> c.UfsAdded:
        source = call.source
        connector = await asyncio.to_thread(self._open_connector, source)
        added = await self._master.add_ufs(
            call.path, source, connector, call.sync_interval_s, call.push
        )
        log.info("source %s is at %s", source.url, shown(call.path))
        return added

    async def _set(self, call: c.SetUfs, caller: Caller) -> m.Message:
        """Changes a source. Cancellation does not stop the work."""
        _check_interval(call.sync_interval_s or 0.0)
        row = await self._master.mounts.change(call, self._open_connector)
        log.info("the source at %s was changed", shown(call.path))
        return c.UfsChanged(row)

    async def _push(self, call: c.PushEvents, caller: Caller) -> m.Message:
        """Handles events. What the caller may do is decided by the source's secret alone."""
        await self.admit_store(call.path, call.secret)
        row = self._master.mounts.row(call.path)
        if row is None:
            raise NotFound("the source was removed", path=shown(call.path))
        if len(call.objects) > MAX_PUSHED:
            raise BadConfig(f"more than {MAX_PUSHED} objects", remedy="send fewer at once")
        await self._master.mounts.look_again(row.path, paths_below(row.source.url, call.objects))
        return m.Done()

    async def _remove(self, call: c.RemoveUfs, caller: Caller) -> m.Message:
        path = self._master.mounts.at(call.path).record.path
        if not call.force:
            self._check_unpinned(path)
        await self._master.mounts.remove(path)
        log.info("the source at %s is removed", shown(path))
        return m.Done()

    def _check_unpinned(self, path: bytes) -> None:
        """Raises InUse if a policy pins the directory of a source, or a path below it."""
        pinned = self._master.pinned_below(path)
        if pinned:
            named = ", ".join(map(shown, pinned[:MOST_NAMED]))
            more = f" and {len(pinned) - MOST_NAMED} more" if len(pinned) > MOST_NAMED else ""
            raise InUse(
                f"a pin protects {named}{more}",
                path=shown(path),
                remedy="unpin first (cachefs unpin), or give --force",
            )


def _check_interval(seconds: float) -> None:
    if math.isnan(seconds):
        raise BadConfig("the sync interval is no number")


_ANSWERS: Final[dict[type, Callable[[SourceCalls, Any, Caller], Awaitable[m.Message]]]] = {
    c.GetUfs: SourceCalls._find,
    c.ListUfs: SourceCalls._list,
    c.AddUfs: SourceCalls._add,
    c.SetUfs: SourceCalls._set,
    c.PushEvents: SourceCalls._push,
    c.RemoveUfs: SourceCalls._remove,
}
