"""A controller finds out what has changed while nothing watched."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from cachefs.core.policies import Policy
from cachefs.kube import master_view
from cachefs.kube.controller import Controller
from cachefs.kube.facts import Facts
from cachefs.kube.spec import OperatorSpec
from cachefs.kube.steps import Use
from tests.unit.kube.things import MASTER
from tests.unit.kube.worlds import URL, Api, Calls, World

LIMIT_S = 20.0
CLAIM = ("PersistentVolumeClaim", ("ml", "one"))


class MeasuredCalls(Calls):
    """Calls of a controller that measures, too."""

    async def use(self, path: str) -> Use | None:
        return None

    async def policy(self, path: str) -> Policy:
        return self._world.policies.get(path, Policy())


async def lives(world: World, until: Callable[[], bool]) -> None:
    """Lets a controller live that sees the Datasets once, and watches nothing."""
    api: Any = Api(world)
    calls: Any = MeasuredCalls(world)
    spec = OperatorSpec(master=URL, address=MASTER, name="one")
    controller = Controller(api, calls, spec, Facts())
    await controller.prime()
    acting = asyncio.create_task(controller.run())
    try:
        async with asyncio.timeout(LIMIT_S):
            while not until():
                assert not acting.done()
                await asyncio.sleep(0.01)
    finally:
        acting.cancel()
        await asyncio.wait([acting])


def test_a_claim_that_was_deleted_while_nothing_watched_is_made_again() -> None:
    async def run() -> None:
        world = World()
        world.create("one", {"source": "s3://b/p", "volume": {"create": True}})

        def is_ready() -> bool:
            told = world.objects["Dataset", ("ml", "one")].get("status", {}).get("conditions", ())
            return any(one["type"] == "VolumeReady" and one["status"] == "True" for one in told)

        await lives(world, is_ready)
        del world.objects[CLAIM]
        await lives(world, lambda: CLAIM in world.objects)

    asyncio.run(run())


def test_a_dataset_is_handled_by_an_api_server_that_was_restored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its versions are below the known ones: what is written to those is refused."""
    monkeypatch.setattr(master_view, "LOOK_S", 0.01)

    async def run() -> None:
        world, key = World(), ("Dataset", ("ml", "one"))
        world.create("one", {"source": "s3://b/p"})
        is_restored = False

        def is_attached_again() -> bool:
            nonlocal is_restored
            if world.sources and not is_restored:
                is_restored = True
                world.versions = itertools.count(1)
                world.touch(world.objects[key])
                world.sources.clear()
            return is_restored and bool(world.sources)

        await lives(world, is_attached_again)

    asyncio.run(run())
