"""A controller ends before or after any of its calls to a real API server and a real master, and
another one begins: in the end sources and jobs are as the objects say.

The controllers run in this process. They are given what listings show; nothing is watched.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cachefs.kube.account import Account
from cachefs.kube.api import KubeApi
from cachefs.kube.controller import CLAIM, DATASET, DELETED, VOLUME, Controller
from cachefs.kube.facts import Facts
from cachefs.kube.master_calls import MasterCalls
from cachefs.kube.names import VOLUME as VOLUME_LABEL
from cachefs.kube.names import Key, Object, key_of
from cachefs.kube.rules import Rules
from cachefs.kube.spec import OperatorSpec
from tests.kube.real.operator.at_rest import NAMES, SPECS, check, is_settled
from tests.kube.real.operator.lab import Lab, dataset
from tests.services.examples import examples
from tests.unit.kube.worlds import Fuse, Killed

pytestmark = [
    pytest.mark.timeout(600),  # of all histories together, beside other load
    # A controller that ends leaves its connections to the end of its process, which goes on here.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

LOOK_S: Final = 0.1
SETTLED_S: Final = 90.0
EVENTS: Final = st.one_of(
    st.tuples(st.just("apply"), st.sampled_from(NAMES), st.sampled_from(SPECS)),
    st.tuples(st.just("delete"), st.sampled_from(NAMES), st.just({})),
)
KILLS: Final = st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=10)
HISTORIES: Final = st.tuples(st.lists(EVENTS, min_size=3, max_size=8), KILLS)
_numbers = itertools.count()


class FusedApi(KubeApi):
    """A client whose requests burn a fuse, before and after they take effect."""

    fuse: Fuse

    async def _request(self, *arguments: Any, **named: Any) -> Object:
        self.fuse.burn(after=False)
        found = await super()._request(*arguments, **named)
        self.fuse.burn(after=True)
        return found


class FusedCalls(MasterCalls):
    """Calls of the master that burn a fuse, before and after they take effect."""

    fuse: Fuse

    async def _run(self, pool: Any, work: Callable[[Any], Any]) -> Any:
        self.fuse.burn(after=False)
        found = await super()._run(pool, work)
        self.fuse.burn(after=True)
        return found

    async def finish(self) -> None:
        """Waits for calls whose caller has ended: they take effect before the next controller."""
        self.close()
        for pool in (self._quick, self._slow):
            await asyncio.to_thread(pool.shutdown, wait=True)


class Lives:
    """Controllers, one after the other."""

    def __init__(self, lab: Lab, account: Account, kills: list[tuple[int, bool]]) -> None:
        self._lab = lab
        self._account = account
        self._kills = kills
        self._seen: dict[tuple[str, Key], Object] = {}
        self.ended = 0

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            fuse = Fuse()
            if self.ended < len(self._kills):
                fuse.left, fuse.after = self._kills[self.ended]
            try:
                await self._live(fuse)
            except* Killed:
                self.ended += 1

    async def _live(self, fuse: Fuse) -> None:
        lab, account = self._lab, self._account
        url, security = lab.cache.master.url, lab.cache.security
        calls = FusedCalls(url, security)
        calls.fuse = fuse
        address = url.removeprefix("http://")
        rules = Rules(file_sources=True)
        spec = OperatorSpec(master=url, address=address, name="lives", rules=rules)
        try:
            async with KubeApi.open(account) as plain, FusedApi.open(account) as api:
                assert isinstance(api, FusedApi)
                api.fuse = fuse
                controller = Controller(api, calls, spec, Facts())
                await self._look(controller, plain)
                async with asyncio.TaskGroup() as group:
                    group.create_task(controller.run())
                    group.create_task(self._look_on(controller, plain))
        finally:
            await calls.finish()

    async def _look_on(self, controller: Controller, api: KubeApi) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self._look(controller, api)

    async def _look(self, controller: Controller, api: KubeApi) -> None:
        """Tells the controller what there is, and what is there no more."""
        kinds = (
            (DATASET, "", controller.saw_dataset),
            (CLAIM, "", controller.saw_claim),
            (VOLUME, VOLUME_LABEL, controller.saw_volume),
        )
        for kind, label, saw in kinds:
            found = {(kind, key_of(one)): one async for one in api.list(kind, labels=label)}
            gone = {at: one for at, one in self._seen.items() if at[0] == kind and at not in found}
            for at, one in gone.items():
                saw(DELETED, one)
                del self._seen[at]
            for one in found.values():
                saw("MODIFIED", one)
            self._seen |= found


def apply(lab: Lab, space: str, source: str, event: tuple[str, str, dict[str, Any]]) -> None:
    kind, name, spec = event
    if kind == "apply":
        lab.apply_again(dataset(space, name, source, **spec))
    else:
        words = ("--wait=false", "--ignore-not-found")
        lab.control.kubectl("delete", "dataset", name, "-n", space, *words)


async def live(lab: Lab, space: str, source: str, history: Any) -> int:
    """Lets controllers live until everything has come to rest. Returns how many were ended."""
    events, kills = history
    lives = Lives(lab, Account(), kills)
    task = asyncio.create_task(lives.run())
    try:
        for event in events:
            await asyncio.to_thread(apply, lab, space, source, event)
        what = "every Dataset has come to its end"
        await asyncio.to_thread(lab.until, lambda: is_settled(lab, space), what, SETTLED_S)
        assert not task.done(), task
        await asyncio.to_thread(check, lab, space)
        await asyncio.to_thread(lab.close_space, space)
    finally:
        task.cancel()
        await asyncio.wait([task])
    return lives.ended


def test_the_master_is_as_the_objects_say(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(lab.root / "kubeconfig"))
    source = lab.source("calls", files=10)
    for replica in lab.replicas:
        if replica.popen.poll() is None:
            replica.kill()
    ended = []

    @settings(
        max_examples=examples(8), deadline=None, suppress_health_check=[*HealthCheck],
        database=None, print_blob=True,
    )  # fmt: skip
    @given(HISTORIES)
    def run(history: Any) -> None:
        space = lab.space(f"calls-{next(_numbers)}")
        ended.append(asyncio.run(live(lab, space, source, history)))
        assert not {path for path in lab.sources() if path.startswith(f"/{space}/")}

    run()
    gc.collect()  # what was left is not found by a later test
    print(f"{sum(ended)} controllers were ended in {len(ended)} histories")
    assert sum(ended) > 0
