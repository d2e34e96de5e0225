"""The membership of a worker in its cluster: registration, heartbeats, the view, leaving.

The master's last view counts. While the master is down, the worker keeps its view and continues to
send heartbeats. If the master no longer knows the worker, the worker registers again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from cachefs.core import cluster as c
from cachefs.core.errors import CacheFSError, ProtocolError
from cachefs.core.messages import Done
from cachefs.core.model import NamespaceId
from cachefs.core.placement import Member, View
from worker.membership.master_client import REACH_S, MasterClient

log = logging.getLogger(__name__)

BEAT_SPARE_S: Final = 1.0  # the timeout of a heartbeat is its interval and this
LEAVE_S: Final = 2.0
REFRESH_S: Final = 5.0
BEAT_SPREAD: Final = 0.1  # jitter of the interval, so that workers do not send together


class Condition(msgspec.Struct, frozen=True):
    """The state of the worker that a heartbeat reports."""

    settled: int = 0  # see `Heartbeat`
    capacity_bytes: int = 0
    used_bytes: int = 0
    facts: dict[str, Any] = msgspec.field(default_factory=dict)


def is_newer(offered: View, current: View) -> bool:
    """Returns whether an offered view replaces the current one."""
    return (offered.epoch, offered.version) > (current.epoch, current.version)


class Membership:
    """The membership: `start` registers and sends heartbeats, `stop` leaves. Belongs to one event
    loop.

    `on_view(view)` is called for each new view, `on_draining(flag)` when the master starts or ends
    the draining of this worker, `on_namespace(id)` and `on_store_run(namespace, run)` at each
    registration. `condition` is called for each heartbeat."""

    def __init__(
        self,
        master: MasterClient,
        me: c.Register,
        *,
        condition: Callable[[], Condition] = Condition,
        on_view: Callable[[View], None] = lambda view: None,
        on_draining: Callable[[bool], None] = lambda draining: None,
        on_namespace: Callable[[NamespaceId], None] = lambda namespace: None,
        on_store_run: Callable[[NamespaceId, int], None] = lambda namespace, run: None,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.me = me
        self.current = View(-1)
        self.draining = False
        self.on_view = on_view
        self.on_draining = on_draining
        self.on_namespace = on_namespace
        self.on_store_run = on_store_run
        self._master = master
        self._condition = condition
        self._clock = clock
        self._jitter = jitter
        self._namespace: NamespaceId | None = None
        self._heartbeat_s = c.HEARTBEAT_S
        self._heartbeats: asyncio.Task[None] | None = None
        self._soon = asyncio.Event()
        self._answered_at = clock()

    @property
    def member(self) -> Member:
        """This worker as a member of the view."""
        return Member(self.me.worker, self.me.url, self.me.weight, self.me.host)

    async def start(self, *, reach_s: float = REACH_S) -> View:
        """Registers, then sends heartbeats until `stop`. Raises the errors of `MasterClient.ask`;
        no task runs then."""
        await self._register(reach_s)
        self._heartbeats = asyncio.get_running_loop().create_task(self._send_heartbeats())
        self._heartbeats.add_done_callback(_log_failure)
        return self.current

    async def stop(self, *, leave: bool = True) -> None:
        """Ends the heartbeats, and with `leave` sends `Leave` without retries. Idempotent."""
        heartbeats, self._heartbeats = self._heartbeats, None
        if heartbeats is None:
            return
        heartbeats.cancel()
        await asyncio.gather(heartbeats, return_exceptions=True)
        if leave:
            with contextlib.suppress(CacheFSError):
                left = c.Leave(self.me.worker, self.me.process)
                await self._master.ask(left, Done, answer_s=LEAVE_S, reach_s=0)

    def send_heartbeat_soon(self) -> None:
        """Sends the next heartbeat now, since it has news for the master (a settled epoch)."""
        self._soon.set()

    async def reweigh(self, weight: float, capacity_bytes: int) -> None:
        """Registers again with another weight. Raises the errors of `MasterClient.ask`."""
        self.me = msgspec.structs.replace(self.me, weight=weight, capacity_bytes=capacity_bytes)
        await self._register(REFRESH_S)

    async def refresh(self, after: int = -1, wait_s: float = 0.0) -> View:
        """Fetches the view from the master now; called when a peer has a later epoch. Raises the
        errors of `MasterClient.ask`."""
        answer = await self._master.ask(
            c.GetView(after, wait_s), c.ViewReply, answer_s=wait_s + REFRESH_S, reach_s=0
        )
        self._adopt(answer.view)
        return self.current

    # ---- inside ----

    async def _register(self, reach_s: float) -> None:
        me = msgspec.structs.replace(self.me, epoch=self.current.epoch)
        answer = await self._master.ask(me, c.Registered, reach_s=reach_s)
        if abs(answer.protocol - c.PROTOCOL) > 1:
            raise ProtocolError(
                f"protocol {answer.protocol} of the master is too far from {c.PROTOCOL}",
                remedy="install the same version of cachefs on both machines",
            )
        self._answered_at = self._clock()
        self._heartbeat_s = answer.heartbeat_s
        if self._namespace not in (None, answer.namespace):
            log.error("the master has another namespace now: remount all mounts of this node")
        if answer.view.epoch < self.current.epoch:
            log.warning("the master has the earlier epoch %d now", answer.view.epoch)
            self.current = View(-1)  # the view of a registration counts in any case
        self._namespace = answer.namespace
        self.on_namespace(answer.namespace)
        self.on_store_run(answer.namespace, answer.store_run)
        self._adopt(answer.view)

    def _adopt(self, view: View) -> None:
        if not is_newer(view, self.current):
            return
        if view.epoch != self.current.epoch:
            log.info("epoch %d: %d workers", view.epoch, len(view.members))
        self.current = view
        self.on_view(view)

    async def _send_heartbeats(self) -> None:
        while True:
            await self._pause()
            try:
                await self._send_heartbeat()
            except CacheFSError as err:  # the client logs it when the master is down
                log.debug("heartbeat: %s", err.one_line())

    async def _pause(self) -> None:
        pause_s = self._heartbeat_s * (1 - BEAT_SPREAD * self._jitter())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._soon.wait()
        self._soon.clear()

    async def _send_heartbeat(self) -> None:
        answer = await self._master.ask(
            self._heartbeat(),
            c.Beaten,
            answer_s=self._heartbeat_s + BEAT_SPARE_S,
            reach_s=0,
        )
        self._answered_at = self._clock()
        if not answer.known:
            log.warning("the master does not know this worker: registering again")
            return await self._register(0)
        if answer.view is not None:
            self._adopt(answer.view)
        if answer.draining != self.draining:
            self.draining = answer.draining
            self.on_draining(answer.draining)

    def _heartbeat(self) -> c.Heartbeat:
        now = self._condition()
        return c.Heartbeat(
            self.me.worker,
            self.current.epoch,
            settled=now.settled,
            capacity_bytes=now.capacity_bytes,
            used_bytes=now.used_bytes,
            facts=now.facts,
            version=self.current.version,
            url=self.me.url,
        )

    def status(self) -> dict[str, Any]:
        """Returns plain values for `cachefs status`."""
        return {
            "worker": self.me.worker,
            "url": self.me.url,
            "weight": self.me.weight,
            "epoch": self.current.epoch,
            "workers": len(self.current.members),
            "weights": {member.id: member.weight for member in self.current.members},
            "moving": bool(self.current.before),
            "draining": self.draining,
            "heard_of_master_s": round(self._clock() - self._answered_at, 1),
        }


def _log_failure(heartbeats: asyncio.Task[None]) -> None:
    """Logs the end of the heartbeats, without which the master soon declares this worker lost."""
    if not heartbeats.cancelled() and (error := heartbeats.exception()) is not None:
        log.critical("no more heartbeats: %s", error, exc_info=error)
