"""An API server and a master in memory, for the handler of Datasets, which may be killed before or
after any of its calls."""

from __future__ import annotations

import copy
import itertools
from collections.abc import AsyncIterator
from typing import Any

from cachefs.core import admin as a
from cachefs.core.errors import CacheFSError, InUse, NotFound, Stale, Unreachable
from cachefs.core.jobs import JobSpec, JobState
from cachefs.core.policies import Policy
from cachefs.kube import dataset as datasets
from cachefs.kube.dataset import Dataset
from cachefs.kube.dataset_handler import DatasetHandler
from cachefs.kube.known import Datasets
from cachefs.kube.master_view import MasterView
from cachefs.kube.names import Key, Object
from cachefs.kube.rules import Rules
from cachefs.kube.steps import Attached, Measured
from tests.unit.kube.things import MASTER, job

URL = "http://m:1"
RULES = Rules()
MOST_TURNS = 60


class Killed(BaseException):
    """The controller's process ends."""


class Fuse:
    """Kills the controller at its n-th call: before it takes effect, or after it."""

    def __init__(self) -> None:
        self.left = -1
        self.after = False

    def burn(self, *, after: bool) -> None:
        if self.left >= 0 and after == self.after:
            self.left -= 1
            if self.left < 0:
                raise Killed


class World:
    """Objects of Kubernetes, and a master."""

    def __init__(self) -> None:
        self.fuse = Fuse()
        self.versions = itertools.count(1)
        self.objects: dict[tuple[str, Key], Object] = {}
        self.sources: dict[str, str] = {}
        self.policies: dict[str, Policy] = {}
        self.jobs: dict[int, a.Job] = {}
        self.keys: dict[str, int] = {}
        self.numbers = itertools.count(1)
        self.away = False
        self.events: list[Object] = []

    # ---- what users do ---------------------------------------------------------------------------

    def create(self, name: str, spec: dict[str, Any]) -> None:
        key = ("Dataset", ("ml", name))
        if key not in self.objects:
            uid = f"u{next(self.versions)}"
            metadata = {"name": name, "namespace": "ml", "uid": uid, "generation": 1}
            self.objects[key] = {"kind": "Dataset", "metadata": metadata, "spec": spec}
            self.touch(self.objects[key])

    def update(self, name: str, changes: dict[str, Any]) -> None:
        found = self.objects.get(("Dataset", ("ml", name)))
        if found is not None:
            found["spec"] = {**found["spec"], **changes}
            found["metadata"]["generation"] += 1
            self.touch(found)

    def remove(self, kind: str, key: Key) -> None:
        found = self.objects.get((kind, key))
        if found is None:
            return
        if found["metadata"].get("finalizers"):
            found["metadata"]["deletionTimestamp"] = "now"
            self.touch(found)
        else:
            del self.objects[kind, key]

    def touch(self, found: Object) -> None:
        found["metadata"]["resourceVersion"] = str(next(self.versions))

    def end_jobs(self, state: JobState = JobState.SUCCEEDED) -> None:
        for number, one in self.jobs.items():
            if not one.state.has_ended:
                self.jobs[number] = job(state, job=number, paths=one.paths, files_found=1)

    def datasets(self) -> list[Dataset]:
        found = [thing for (kind, _), thing in self.objects.items() if kind == "Dataset"]
        return [datasets.parse(copy.deepcopy(one), Rules()) for one in found]


class Api:
    """As `KubeApi`."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def get(self, kind: str, key: Key) -> Object:
        self._world.fuse.burn(after=False)
        if (kind, key) not in self._world.objects:
            raise NotFound(f"no {kind}", path=str(key))
        return copy.deepcopy(self._world.objects[kind, key])

    async def find(self, kind: str, key: Key) -> Object | None:
        try:
            return await self.get(kind, key)
        except NotFound:
            return None

    async def list(
        self, kind: str, namespace: str = "", *, labels: str = ""
    ) -> AsyncIterator[Object]:
        self._world.fuse.burn(after=False)
        for (one, _), thing in [*self._world.objects.items()]:
            if one == kind and (not labels or labels in (thing["metadata"].get("labels") or {})):
                yield copy.deepcopy(thing)

    async def create(self, thing: Object) -> Object:
        world, metadata = self._world, thing["metadata"]
        if thing["kind"] == "Event":
            world.events.append(thing)
            return thing
        world.fuse.burn(after=False)
        key = (thing["kind"], (metadata.get("namespace", ""), metadata["name"]))
        if key in world.objects:
            raise InUse("exists")
        world.objects[key] = made = copy.deepcopy(thing)
        made["metadata"]["uid"] = f"u{next(world.versions)}"
        world.touch(made)
        world.fuse.burn(after=True)
        return copy.deepcopy(made)

    async def delete(self, kind: str, key: Key, uid: str) -> None:
        self._world.fuse.burn(after=False)
        if self._world.objects.get((kind, key), {}).get("metadata", {}).get("uid") == uid:
            self._world.remove(kind, key)
        self._world.fuse.burn(after=True)

    async def patch(self, kind: str, key: Key, body: Any, *, part: str = "", **_: Any) -> Object:
        world = self._world
        world.fuse.burn(after=False)
        found = world.objects.get((kind, key))
        if found is None:
            raise NotFound("gone", path=str(key))
        metadata = dict(body.get("metadata") or {})
        if metadata.pop("resourceVersion") != found["metadata"]["resourceVersion"]:
            raise Stale("another version")
        if part:
            status = {**(found.get("status") or {}), **body["status"]}
            found["status"] = {name: one for name, one in status.items() if one is not None}
        found["metadata"].update(metadata)
        world.touch(found)
        made = copy.deepcopy(found)
        if "deletionTimestamp" in made["metadata"] and not made["metadata"]["finalizers"]:
            del world.objects[kind, key]
        world.fuse.burn(after=True)
        return made


class Calls:
    """As `MasterCalls`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def is_away(self, err: CacheFSError) -> bool:
        return err.path == URL

    def _begin(self) -> World:
        self._world.fuse.burn(after=False)
        if self._world.away:
            raise Unreachable("no answer", path=URL)
        return self._world

    def _end(self) -> None:
        self._world.fuse.burn(after=True)

    async def sources(self) -> dict[str, Attached]:
        return {path: Attached(url) for path, url in self._begin().sources.items()}

    async def attach(self, path: str, url: str, options: dict[str, str], push: str = "") -> str:
        world = self._begin()
        if "unreachable" in url:
            raise Unreachable("the origin does not answer", path=url)
        if world.sources.setdefault(path, url) != url:
            raise InUse("another source is there")
        self._end()
        return ""

    async def detach(self, path: str) -> None:
        self._begin().sources.pop(path, None)
        self._end()

    async def set_policy(self, path: str, policy: Policy) -> None:
        self._begin().policies[path] = policy
        self._end()

    async def unset_policy(self, path: str) -> None:
        self._begin().policies.pop(path, None)
        self._end()

    async def submit(self, spec: JobSpec, key: str) -> int:
        world, path = self._begin(), spec.paths[0].decode()
        number = world.keys.get(key, 0)
        if number not in world.jobs:
            same = [one.job for one in world.jobs.values() if _runs(one, path)]
            number = same[0] if same else next(world.numbers)
            world.jobs.setdefault(number, job(job=number, paths=[path]))
            if not same:
                world.keys[key] = number
        self._end()
        return number

    async def job(self, number: int) -> a.Job:
        world = self._begin()
        if number not in world.jobs:
            raise NotFound(f"no job {number}")
        return world.jobs[number]

    async def end_jobs(self, path: str) -> None:
        world = self._begin()
        for number in [one.job for one in world.jobs.values() if one.paths == [path]]:
            del world.jobs[number]
        self._end()


def _runs(one: a.Job, path: str) -> bool:
    return one.paths == [path] and not one.state.has_ended


class Controller:
    """One process of the controller, which handles all Datasets in turn."""

    def __init__(self, world: World, rules: Rules = RULES) -> None:
        api: Any = Api(world)
        calls: Any = Calls(world)
        self._world = world
        self._known = Datasets()
        self.view = MasterView(calls, lambda _: None)
        self._handler = DatasetHandler(
            api, calls, self.view, rules, MASTER, self._keep, self._drop, lambda: 1e9
        )

    def _keep(self, dataset: Dataset) -> None:
        self._known.replace(dataset)

    def _drop(self, dataset: Dataset) -> None:
        self._known.drop(dataset.key, dataset.uid)

    async def turn(self) -> bool:
        """Looks at the master and at each Dataset once. Returns whether nothing changed."""
        before = copy.deepcopy(self._world.objects)
        await self.view.look()
        for dataset in self._world.datasets():
            try:
                measured = Measured(None, self._world.policies.get(dataset.path, Policy()))
                await self._handler.handle(dataset, looks_at_objects=True, measured=measured)
            except (NotFound, Stale):
                pass
        return before == self._world.objects

    async def settle(self) -> None:
        """Turns until nothing changes."""
        for _ in range(MOST_TURNS):
            self._world.end_jobs()
            if await self.turn():
                return
        raise AssertionError("the controller does not come to rest")
