"""A node with views, as a process that kills itself before its Nth change of the disk,
of the index, or of a cover. `python -m tests.model.views_process DIRECTORY SEED KIND N`.

What outlives it lies in the directory: the tier, the names, the history of the origin, and the list
of the covers, which the kernel would have.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from cachefs.core.errors import InUse, NotFound
from cachefs.core.model import ContentId, Fingerprint
from cachefs.core.policies import Policy
from tests.integration.test_views import change_origin
from tests.integration.views_rig import Covered, FakeKernel, FakeMount, KeptOrigin, Node, node
from worker.store.writer import Writer
from worker.views import automatic, choice, covers
from worker.views.views import Views

STEPS = 25
COVER_TRIES = 60
CALLS = ("link", "unlink", "mkdir", "rmdir", "symlink", "chown", "chmod", "utime")
MOUNTPOINT = "/m"


class LoggedOrigin(KeptOrigin):
    """An origin that another process makes again from its history."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self._log: Path | None = None
        for line in log.read_text().splitlines() if log.exists() else ():
            method, path, data = json.loads(line)
            getattr(self, method)(bytes.fromhex(path), *map(bytes.fromhex, data))
        self._log = log

    def _note(self, method: str, path: bytes, *data: bytes) -> None:
        if self._log is not None:
            line = json.dumps([method, path.hex(), [one.hex() for one in data]])
            with self._log.open("a") as file:
                file.write(line + "\n")

    def put(
        self, path: bytes, data: bytes, *, mode: int = -1, uid: int = -1, gid: int = -1
    ) -> Fingerprint:
        self._note("put", path, data)
        return super().put(path, data, mode=mode, uid=uid, gid=gid)

    def symlink(self, path: bytes, target: bytes) -> Fingerprint:
        self._note("symlink", path, target)
        return super().symlink(path, target)

    def delete(self, path: bytes) -> None:
        self._note("delete", path)
        super().delete(path)

    def mkdir(self, path: bytes) -> None:
        self._note("mkdir", path)
        super().mkdir(path)


class LoggedCovers(Covered):
    """The covers of a mount, by number; a kill loses none."""

    def __init__(self, log: Path, tier: Path) -> None:
        super().__init__()
        self._log = log
        for cover, (path, tree) in left_covers(log).items():
            flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
            with contextlib.suppress(FileNotFoundError):  # it is empty for good
                super().__setitem__(cover, (path, os.open(tier / "views" / tree, flags)))

    def __setitem__(self, cover: int, shown: tuple[bytes, int]) -> None:
        tree = os.path.basename(os.readlink(f"/proc/self/fd/{shown[1]}"))
        self._note(["lay", cover, shown[0].hex(), tree])
        super().__setitem__(cover, shown)

    def pop(self, cover: int, *default: Any) -> Any:
        shown = super().pop(cover, *default)
        self._note(["remove", cover])
        return shown

    def _note(self, words: list[Any]) -> None:
        with self._log.open("a") as file:
            file.write(json.dumps(words) + "\n")


def left_covers(log: Path) -> dict[int, tuple[bytes, str]]:
    """Returns path and tree of the covers that were laid and not removed."""
    left: dict[int, tuple[bytes, str]] = {}
    for line in log.read_text().splitlines() if log.exists() else ():
        match json.loads(line):
            case ["lay", cover, path, tree]:
                left[cover] = bytes.fromhex(path), tree
            case ["remove", cover]:
                left.pop(cover, None)
    return left


KINDS: Final[dict[str, list[tuple[Any, str]]]] = {
    "disk": [*((os, name) for name in CALLS), (Writer, "write"), (Writer, "submit")],
    "covers": [(FakeMount, "send_cover"), (FakeMount, "send_uncover"), (Views, "reported")],
    "events": [(Views, "heed")],
}


def kill_at(kind: str, step: int) -> None:
    """Kills this process before the call number `step` of a kind."""
    count = [0]

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if count[0] >= step:
                os.kill(os.getpid(), signal.SIGKILL)
            count[0] += 1
            return function(*args, **options)

        return call

    for owner, name in KINDS[kind]:
        setattr(owner, name, counted(getattr(owner, name)))


def settle() -> None:
    """Pauses that tests do not sit out."""
    covers.UNCOVER_S = 0.05  # type: ignore[misc]
    automatic.QUIET_S = 0.0  # type: ignore[misc]
    automatic.SURVEY_SHARE = 0  # type: ignore[misc]
    choice.VIEW_LEAST_FILES = 3  # type: ignore[misc]


async def work(directory: Path, seed: int, kind: str, step: int) -> None:
    rng = random.Random(seed)
    origin = LoggedOrigin(directory / "origin.log")
    kernel = FakeKernel()
    kill_at(kind, step)
    async with node(directory, origin, kernel=kernel) as one:
        kept = LoggedCovers(directory / "covers.log", directory / "tier")
        await one.mount(MOUNTPOINT, kept)
        for _ in range(STEPS):
            with contextlib.suppress(NotFound, InUse):
                await random_step(rng, one)
            if rng.random() < 0.7:
                await cover(one)


async def cover(one: Node) -> None:
    """Has the views built that wait, without their pauses."""
    for _ in range(COVER_TRIES):
        waiting = [view for view in one.views.all() if view.status().state != "covered"]
        if not waiting:
            return
        for view in waiting:
            view._due_s = 0.0
            view._woken.set()
        await asyncio.sleep(0.005)


async def random_step(rng: random.Random, one: Node) -> None:
    path = rng.choice([b"train", b"train", b"train/c0", b"other", b""])
    match rng.choice(["freeze", "thaw", "policy", "look", "free", "change", "change", "change"]):
        case "freeze":
            await one.freeze(path)
        case "thaw":
            await one.views.thaw(one.namespace, path)
        case "policy":
            policy = Policy(view=rng.choice(["auto", "native", "never"]))
            await one.views.uncover_path(one.namespace, path, "policy")
            await one.master.set_policy(path, policy, ())
        case "look":
            await one.views.automatic.step()
            await asyncio.sleep(rng.random() / 50)
        case "free":
            keys = [*one.tier.contents.order.keys()]
            some = rng.sample(keys, min(3, len(keys)))
            await one.cache.free([ContentId.of_key(key) for key in some])
        case "change":
            change_origin(rng, one.origin)
            await one.sync()


if __name__ == "__main__":
    settle()
    asyncio.run(work(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
