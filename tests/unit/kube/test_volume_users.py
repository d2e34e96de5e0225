"""The check before an uninstall names the pods that use volumes of the driver."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cachefs.core.errors import InUse, NotFound
from cachefs.kube.names import DRIVER, Object
from cachefs.kube.volume_users import SLACK_S, check, users
from tests.unit.kube.things import MASTER, pod, thing


class Objects:
    """What the API server has."""

    def __init__(self, *pods: Object, volumes: tuple[Object, ...] = ()) -> None:
        self.things = {"Pod": list(pods), "PersistentVolume": list(volumes)}

    async def list(self, kind: str) -> AsyncIterator[Object]:
        if kind not in self.things:
            raise NotFound("the server could not find the requested resource")
        for one in self.things[kind]:
            yield one


def running(name: str, volume: dict[str, Any], phase: str = "Running") -> Object:
    made = pod(name, nodeName="node", volumes=[{"name": "data", **volume}])
    return made | {"status": {"phase": phase}}


def volume(claim: str, driver: str = DRIVER) -> Object:
    csi = {"driver": driver, "volumeHandle": f"cachefs://{MASTER}/a"}
    return {"spec": {"csi": csi, "claimRef": {"namespace": "ml", "name": claim}}}


def judge(
    objects: Objects,
    changes: dict[str, list[Object]] | None = None,
    *,
    has_controller: bool = True,
) -> list[float]:
    """Returns the pauses of a check; meanwhile objects change."""
    pauses = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        objects.things |= changes or {}

    api: Any = objects
    asyncio.run(check(api, 60.0, sleep, has_controller=has_controller))
    return pauses


INLINE: dict[str, Any] = {"csi": {"driver": DRIVER, "volumeAttributes": {"path": "/a"}}}
CLAIM: dict[str, Any] = {"persistentVolumeClaim": {"claimName": "claim"}}
EPHEMERAL: dict[str, Any] = {"ephemeral": {"volumeClaimTemplate": {}}}


@pytest.mark.parametrize(
    ("used", "claim"), [(INLINE, "none"), (CLAIM, "claim"), (EPHEMERAL, "one-data")]
)
def test_pods_with_volumes_are_named(used: dict[str, Any], claim: str) -> None:
    with pytest.raises(InUse, match="ml/one") as failed:
        judge(Objects(running("one", used), volumes=(volume(claim),)))
    assert "delete these pods" in failed.value.one_line()


def test_it_waits_for_what_lingers_and_looks_again() -> None:
    gone = Objects(
        running("ended", INLINE, "Succeeded"),
        pod("waits", volumes=[{"name": "data", **INLINE}]),
        running("other", CLAIM),
        running("another", {"csi": {"driver": "other"}}),
        volumes=(volume("claim", "other"), {"spec": {"hostPath": {}}}),
    )
    assert judge(gone) == [60.0 + SLACK_S]
    with pytest.raises(InUse, match="ml/late"):
        judge(gone, {"Pod": [running("late", INLINE)]})


def test_datasets_that_only_the_controller_can_end_are_named() -> None:
    """Their deletion would wait for ever. One without our finalizer needs nobody."""
    objects = Objects()
    assert judge(objects) == [60.0 + SLACK_S], "no definition of Datasets"
    free = thing(name="free", finalizers=["other"])
    objects.things["Dataset"] = [free, thing(name="one"), thing(name="two")]
    with pytest.raises(InUse, match="Datasets need the controller at their end: ml/one, ml/two"):
        judge(objects)
    assert judge(objects, has_controller=False) == [60.0 + SLACK_S]
    objects.things["Dataset"] = [free]
    assert judge(objects) == [60.0 + SLACK_S]
    with pytest.raises(InUse, match="ml/late"):
        judge(objects, {"Dataset": [thing(name="late")]})


class Kept(dict[str, Any]):
    """An object whose end can be noticed."""

    __slots__ = ("__weakref__",)


class ManyPods:
    """An API server with more pods than should be in memory at once."""

    def __init__(self) -> None:
        self.made: list[weakref.ref[Kept]] = []
        self.most = 0

    async def list(self, kind: str) -> AsyncIterator[Object]:
        for number in range(100 if kind == "Pod" else 0):
            made = Kept(running(f"p{number}", INLINE))
            self.made.append(weakref.ref(made))
            self.most = max(self.most, sum(one() is not None for one in self.made))
            yield made


def test_the_pods_of_the_cluster_are_not_kept_in_memory() -> None:
    api: Any = ManyPods()
    assert len(asyncio.run(users(api, "/a"))) == 100
    assert api.most < 10
