"""Datasets are created, changed and deleted at random, and the controller is killed before or after
any of its calls: in the end the master and Kubernetes are as the objects say."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cachefs.core.jobs import JobState
from cachefs.core.policies import Policy
from cachefs.kube.names import DRIVER, FINALIZER
from cachefs.kube.rules import Rules
from cachefs.kube.status import Phase, Type
from tests.unit.kube.things import pod
from tests.unit.kube.worlds import Controller, Killed, World

NAMES = st.sampled_from(["one", "two"])
SPECS: list[dict[str, Any]] = [
    {"source": "s3://b/p", "volume": {"create": True}, "policies": {"pin": True}},
    {"source": "s3://b/q", "load": {"enabled": False}},
    {"source": "s3://b/p", "load": {"bandwidth": "1MiB"}},
]
CHANGES: list[dict[str, Any]] = [
    {"load": {"revision": 1}},
    {"load": {"bandwidth": "2MiB"}},
    {"policies": {"replicas": 2}},
    {"volume": {"create": True}},
    {"load": {"bandwidth": "fast"}},
    {"load": {}},
]
EVENTS = st.one_of(
    st.tuples(st.just("create"), NAMES, st.sampled_from(SPECS)),
    st.tuples(st.just("update"), NAMES, st.sampled_from(CHANGES)),
    st.tuples(st.just("delete"), NAMES, st.none()),
    st.tuples(st.just("claim"), NAMES, st.none()),
    st.tuples(st.just("forget"), NAMES, st.none()),
    st.tuples(st.just("policy"), NAMES, st.none()),
    st.tuples(st.just("turn"), NAMES, st.tuples(st.integers(-1, 12), st.booleans())),
)


def apply(world: World, kind: str, name: str, value: Any) -> None:
    match kind:
        case "create":
            world.create(name, value)
        case "update":
            world.update(name, value)
        case "delete":
            world.remove("Dataset", ("ml", name))
        case "claim":
            world.remove("PersistentVolumeClaim", ("ml", name))
        case "forget":
            world.sources.pop(f"/ml/{name}", None)
        case "policy":
            if f"/ml/{name}" in world.policies:
                world.policies[f"/ml/{name}"] = Policy(replicas=7)


async def turn(world: World, controller: Controller, kill_at: int, after: bool) -> Controller:
    """Lets the controller look at everything once; one that is killed is started again."""
    world.fuse.left, world.fuse.after = kill_at, after
    try:
        await controller.turn()
        return controller
    except Killed:
        return Controller(world)
    finally:
        world.fuse.left = -1


def check(world: World) -> None:
    """Checks that everything is as the objects say, and nothing else is there."""
    found = {one.path: one for one in world.datasets()}
    assert not any(one.is_deleting for one in found.values())
    used = {path: one for path, one in found.items() if one.status.source}
    good = {path: one for path, one in used.items() if not one.problem}
    # A spec that cannot be used any more leaves what was made until then.
    assert good.keys() <= world.sources.keys() <= used.keys()
    assert all(used[path].spec.source == url for path, url in world.sources.items())
    for path, one in good.items():
        assert world.policies[path] == one.policy
        loads = one.spec.load.enabled
        assert one.status.phase is (Phase.LOADED if loads else Phase.ATTACHED)
        assert one.status.job in world.jobs or not loads
    assert {one.paths[0] for one in world.jobs.values()} <= used.keys()
    assert world.policies.keys() <= used.keys()
    names = {(kind, key) for kind, key in world.objects if kind != "Dataset"}
    made = {path for path, one in good.items() if one.spec.volume.create}
    claims = {f"/{key[0]}/{key[1]}" for kind, key in names if key[0]}
    volumes = [key for _, key in names if not key[0]]
    assert made <= claims <= used.keys()
    assert len(volumes) >= len(claims)


@given(st.lists(EVENTS, max_size=25))
@example([("create", "two", SPECS[0]), ("turn", "one", (1, True)), ("update", "two", CHANGES[4])])
def test_everything_is_as_the_objects_say(history: list[tuple[str, str, Any]]) -> None:
    async def run() -> None:
        world = World()
        controller = Controller(world)
        for kind, name, value in history:
            if kind == "turn":
                controller = await turn(world, controller, *value)
            else:
                apply(world, kind, name, value)
        await controller.settle()
        check(world)

    asyncio.run(run())


def run_one(spec: dict[str, Any]) -> tuple[World, Controller]:
    world = World()
    world.create("one", spec)
    return world, Controller(world)


def test_one_load_is_started_however_often_the_controller_dies() -> None:
    async def run() -> None:
        world, controller = run_one({"source": "s3://b/p"})
        for kill_at in range(12):
            for after in (False, True):
                controller = await turn(world, controller, kill_at, after)
        await controller.settle()
        check(world)
        assert len(world.jobs) == 1

    asyncio.run(run())


def test_policies_that_were_changed_by_hand_are_set_back_and_told() -> None:
    async def run() -> None:
        world, controller = run_one({"source": "s3://b/p", "policies": {"pin": True}})
        await controller.settle()
        assert [one["reason"] for one in world.events] == ["Loading", "Loaded"]
        world.policies["/ml/one"] = Policy(pin=False)
        await controller.settle()
        check(world)
        assert [one["reason"] for one in world.events][2:] == ["PoliciesSetBack"]

    asyncio.run(run())


@pytest.mark.parametrize("confine", [False, True])
def test_a_pod_of_another_namespace_keeps_a_dataset_that_it_can_read(confine: bool) -> None:
    """Where the driver confines inline volumes, it cannot."""

    async def run() -> None:
        world, controller = run_one({"source": "s3://b/p"})
        await controller.settle()
        data = {"csi": {"driver": DRIVER, "volumeAttributes": {"path": "/ml/one"}}}
        made = pod(nodeName="node", volumes=[{"name": "data", **data}])
        made["metadata"]["namespace"] = "other"
        world.objects["Pod", ("other", "p")] = made
        world.remove("Dataset", ("ml", "one"))
        await Controller(world, Rules(confine=confine)).settle()
        assert (not world.sources) == confine

    asyncio.run(run())


def test_a_failed_load_is_told_and_its_retry_noticed() -> None:
    async def run() -> None:
        world, controller = run_one({"source": "s3://b/p"})
        await controller.turn()
        world.end_jobs(JobState.FAILED)
        await controller.turn()
        (failed,) = world.datasets()
        assert failed.status.phase is Phase.FAILED
        assert [one["reason"] for one in world.events] == ["Loading", "LoadFailed"]
        ((number, one),) = world.jobs.items()
        world.jobs[number] = type(one)(**{**as_dict(one), "state": JobState.SUCCEEDED})
        await controller.turn()
        (loaded,) = world.datasets()
        assert loaded.status.phase is Phase.LOADED

    asyncio.run(run())


def as_dict(one: Any) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__struct_fields__}


def test_a_master_that_is_away_detaches_nothing() -> None:
    async def run() -> None:
        world, controller = run_one({"source": "s3://b/p"})
        await controller.settle()
        world.away = True
        world.remove("Dataset", ("ml", "one"))
        await controller.turn()
        (dataset,) = world.datasets()
        assert FINALIZER in dataset.finalizers
        assert not dataset.status.holds(Type.MASTER)
        assert world.sources
        world.away = False
        await controller.settle()
        check(world)
        assert not world.datasets()

    asyncio.run(run())


def test_an_origin_that_cannot_be_reached_keeps_the_dataset_pending() -> None:
    async def run() -> None:
        world, controller = run_one({"source": "s3://unreachable"})
        await controller.turn()
        (dataset,) = world.datasets()
        told = dataset.status.condition(Type.ATTACHED)
        assert dataset.status.phase is Phase.PENDING
        assert told is not None
        assert told.message == "s3://unreachable: the origin does not answer"
        world.remove("Dataset", ("ml", "one"))
        await controller.settle()
        assert not world.datasets()

    asyncio.run(run())


@pytest.mark.parametrize("is_late", [False, True])
def test_a_source_that_took_the_place_of_ours_stays_and_opens_no_gate(is_late: bool) -> None:
    """An operator replaces it, also at the moment at which the Dataset is deleted."""

    async def run() -> None:
        world, controller = run_one({"source": "s3://b/p"})
        await controller.settle()
        world.sources["/ml/one"] = "s3://mirror/p"
        if not is_late:
            await controller.settle()
            (found,) = world.datasets()
            told = found.status.condition(Type.ATTACHED)
            assert told is not None
            assert (told.reason, found.status.phase) == ("PathTaken", Phase.PENDING)
        world.remove("Dataset", ("ml", "one"))
        await controller.settle()
        assert world.datasets() == []
        assert world.sources == {"/ml/one": "s3://mirror/p"}

    asyncio.run(run())


def test_data_is_loaded_again_after_another_source_has_left_its_place() -> None:
    async def run() -> None:
        world, controller = run_one({"source": "s3://b/p"})
        await controller.settle()
        (before,) = world.datasets()
        world.sources["/ml/one"] = "s3://mirror/p"
        await controller.settle()
        del world.sources["/ml/one"]
        await controller.settle()
        (found,) = world.datasets()
        assert world.sources == {"/ml/one": "s3://b/p"}
        assert found.status.phase is Phase.LOADED
        assert found.status.job_key != before.status.job_key

    asyncio.run(run())


def test_a_status_is_about_a_new_spec_once_its_policies_are_set() -> None:
    async def killed_at(call: int) -> tuple[bool, bool]:
        """Returns whether the status is about the new spec, and whether its policies are set."""
        world = World()
        world.create("one", {"source": "s3://b/p"})
        await Controller(world).settle()
        world.update("one", {"policies": {"replicas": 2}})
        world.fuse.left = call
        with contextlib.suppress(Killed):
            await Controller(world).settle()
        (dataset,) = world.datasets()
        is_told = dataset.status.observed_generation == dataset.generation
        return is_told, world.policies[dataset.path].replicas == 2

    found = [asyncio.run(killed_at(call)) for call in range(10)]
    assert (False, False) in found
    assert (True, False) not in found
    assert found[-1] == (True, True)
