"""The process of one replica: it waits for the Lease, acts, and ends when the Lease is lost.

After the loss another replica may act, so everything of this one must end: the process does.
Kubernetes starts it again.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import click
import msgspec

from cachefs.core.errors import CacheFSError, NotFound
from cachefs.kube.account import Account
from cachefs.kube.api import KubeApi
from cachefs.kube.controller import DATASET, Controller
from cachefs.kube.election import Election
from cachefs.kube.facts import Facts, registry_of
from cachefs.kube.master_calls import MasterCalls
from cachefs.kube.spec import OperatorSpec
from cachefs.kube.watching import watch
from cachefs.launcher.metrics_page import MetricsPage
from cachefs.launcher.serving import STOP_SIGNALS

log = logging.getLogger(__name__)

BEAT_S: Final = 5.0
HUNG_S: Final = 30.0  # the event loop must run this often
END_S: Final = 1.0
KOPF_START_S: Final = 0.1
FAILED: Final = 1  # the exit code
LOOK_S: Final = 2.0


class Process:
    """One replica, from `run` to its end."""

    def __init__(self, spec: OperatorSpec) -> None:
        self._spec = spec
        self._facts = Facts()
        self._beat_at_s = time.monotonic()

    async def run(self) -> int:
        """Runs until a stop signal; returns the exit code. Raises BadConfig, AccessDenied."""
        stop = asyncio.Event()
        _listen(stop)
        page = self._page()
        account = Account()
        try:
            async with KubeApi.open(account) as api:
                election = Election(api, self._spec.namespace or account.namespace, self._spec.name)
                self._say_started()
                ended = await first_ended(
                    stop.wait(), self._act(api, election, stop), self._beats()
                )
                return FAILED if ended is False else 0
        finally:
            if page is not None:
                page.close()

    def _page(self) -> MetricsPage | None:
        if not self._spec.metrics:
            return None
        page = MetricsPage(self._spec.metrics, registry_of(self._facts), self.is_healthy)
        page.start()
        return page

    def is_healthy(self) -> bool:
        """Returns whether the event loop runs. A replica that waits is healthy."""
        return time.monotonic() - self._beat_at_s < HUNG_S

    async def _beats(self) -> None:
        while True:
            self._beat_at_s = time.monotonic()
            await asyncio.sleep(BEAT_S)

    def _say_started(self) -> None:
        spec = self._spec
        if spec.says_json:
            click.echo(msgspec.json.encode({"name": spec.name, "master": spec.master}))
        else:
            click.echo(f"OK, the controller {spec.name} manages the Datasets of {spec.master}")
        sys.stdout.flush()

    async def _act(self, api: KubeApi, election: Election, stop: asyncio.Event) -> bool:
        """Acts from the election on. Returns whether it was stopped; else the Lease was lost.
        Cancellation gives the Lease back."""
        calls = MasterCalls(self._spec.master, self._spec.security)
        try:
            await election.win()
            self._facts.is_leader = True
            controller = Controller(api, calls, self._spec, self._facts)
            return bool(await first_ended(election.hold(), _lead(api, controller, stop)))
        finally:
            self._facts.is_leader = False
            calls.close()
            await election.give_back()


async def _lead(api: KubeApi, controller: Controller, stop: asyncio.Event) -> bool:
    """Manages Datasets. Returns True if kopf got a stop signal."""
    await _patiently(lambda: _check_served(api))
    await _patiently(controller.prime)
    ready = asyncio.Event()
    watched = watch(controller, ready)
    await first_ended(controller.run(), watched, _listen_again(stop, ready))
    return True


async def _listen_again(stop: asyncio.Event, ready: asyncio.Event) -> None:
    """Takes the stop signals back from kopf, which takes them when it starts. Does not end."""
    await ready.wait()
    await asyncio.sleep(KOPF_START_S)
    _listen(stop)
    await asyncio.Event().wait()


def _listen(stop: asyncio.Event) -> None:
    """Lets stop signals set an event."""
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)


async def _check_served(api: KubeApi) -> None:
    if not await api.is_served(DATASET):
        raise NotFound(
            "the API server knows no Datasets", remedy="apply the CustomResourceDefinition"
        )


async def _patiently(work: Callable[[], Awaitable[None]]) -> None:
    """Repeats what may fail until it succeeds, and logs each new cause."""
    told = ""
    while True:
        try:
            return await work()
        except CacheFSError as err:
            if err.one_line() != told:
                told = err.one_line()
                log.warning("waiting: %s", told)
        await asyncio.sleep(LOOK_S)


async def first_ended(*works: Coroutine[Any, Any, Any]) -> Any:
    """Returns the result of the first work that ends, or raises its error. Cancels the others, and
    waits for them for `END_S`."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task in done).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=END_S)
