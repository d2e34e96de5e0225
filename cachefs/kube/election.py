"""Holds the Lease by which one replica of the controller acts at a time."""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Callable

from cachefs.core.errors import CacheFSError
from cachefs.core.lasting_clock import lasting_s
from cachefs.kube import lease
from cachefs.kube.api import KubeApi
from cachefs.kube.names import COMPONENT, Object

log = logging.getLogger(__name__)


class Election:
    """One replica's part in the election. Belongs to one event loop."""

    def __init__(
        self,
        api: KubeApi,
        namespace: str,
        name: str,
        clock: Callable[[], float] = lasting_s,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._clock = clock
        self._seen: lease.SeenLease | None = None
        self._held: Object | None = None
        self._renewed_at_s = 0.0

    async def win(self) -> None:
        """Waits until this replica holds the Lease. Raises nothing."""
        told = ""
        while True:
            try:
                waits_for = await self._try()
            except CacheFSError as err:  # another replica was faster, or the API server is away
                waits_for = ""
                log.info("the Lease is not taken: %s", err.one_line())
            if self._held is not None:
                return log.info("this replica, %s, acts", self._name)
            if waits_for and waits_for != told:
                log.info("the replica %s acts, this one waits", waits_for)
                told = waits_for
            await asyncio.sleep(lease.LOOK_S)

    async def hold(self) -> None:
        """Renews the Lease; returns when it is lost."""
        assert self._held is not None, "the election is not won"
        while not lease.is_lost(self._renewed_at_s, self._clock()):
            await asyncio.sleep(lease.RENEW_S)
            try:
                left_s = self._renewed_at_s + lease.RENEW_LIMIT_S - self._clock()
                async with asyncio.timeout(max(0.0, left_s)):
                    await self._renew()
            except (CacheFSError, TimeoutError) as err:
                log.warning("the Lease is not renewed: %s", err)
        log.error("the Lease is lost: this replica ends")

    async def give_back(self) -> None:
        """Lets another replica act at once. Raises nothing."""
        held, self._held = self._held, None
        if held is None:
            return
        try:
            await self._api.replace(self._body(held, ""))
        except CacheFSError as err:
            log.info("the Lease is not given back: %s", err.one_line())

    async def _try(self) -> str:
        """Takes the Lease if it may. Returns the holder for which it waits, or ""."""
        began_s = self._clock()
        found = await self._api.find("Lease", (self._namespace, COMPONENT))
        self._seen = lease.look(found, self._seen, began_s)
        verdict = lease.decide(found, self._seen, self._name, began_s)
        if isinstance(verdict, lease.WaitFor):
            return verdict.holder
        body = self._body(found, self._name)
        self._held = await (self._api.create(body) if found is None else self._api.replace(body))
        self._renewed_at_s = began_s
        return ""

    async def _renew(self) -> None:
        """Writes the Lease again. Raises Stale if another replica has written it."""
        assert self._held is not None
        began_s = self._clock()
        self._held = await self._api.replace(self._body(self._held, self._name))
        self._renewed_at_s = began_s

    def _body(self, found: Object | None, holder: str) -> Object:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return lease.body_of(
            found, name=COMPONENT, namespace=self._namespace, holder=holder, now=now
        )
