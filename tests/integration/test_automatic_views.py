"""[S-views-policy] The policy `view` over a real master and a real cache: what is covered without a
command, what ends, and what gives way."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cachefs.core.errors import InUse
from cachefs.core.model import Kind
from cachefs.core.policies import Policy
from tests.integration.test_views import run
from tests.integration.views_rig import MIB, FakeMount, KeptOrigin, Node, node
from tests.unit.worker.rig import until
from worker.runtime.clocks import Clocks
from worker.views import automatic, choice

LEAST = 10


class Time:
    """Clocks that tests advance."""

    def __init__(self) -> None:
        self.added_s = 0.0
        real = Clocks()
        self.clocks = dataclasses.replace(
            real,
            monotonic=lambda: real.monotonic() + self.added_s,
            wall=lambda: real.wall() + self.added_s,
        )


@pytest.fixture(autouse=True)
def few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "LEAST_FILES", LEAST)
    monkeypatch.setattr(automatic, "LOOK_S", 3600.0)  # tests call `step`


def origin_with(count: int = 20, size: int = 1000) -> KeptOrigin:
    origin = KeptOrigin()
    for number in range(count):
        origin.put(b"train/a/f%d" % number, bytes([number]) * size)
        origin.put(b"train/b/f%d" % number, bytes([number]) * size)
        origin.put(b"other/f%d" % number, bytes([number]) * size)
    return origin


class Rig:
    """A node with a mount, whose time the test has."""

    def __init__(self, one: Node, mount: FakeMount, time: Time) -> None:
        self.one = one
        self.mount = mount
        self.time = time
        self.unsettled = ["building", "ready"]

    async def read(self, path: bytes) -> None:
        """Opens every file below a path, as readers do."""
        async for batch in self.one.master.walk(1):
            for name, inode in batch:
                if name.startswith(path) and inode.kind is Kind.FILE:
                    grant = await self.one.cache.open(self.one.namespace, inode.ino)
                    if grant.fd is not None:
                        os.close(grant.fd)
                    self.one.cache.release(grant.handle)

    async def policy(self, path: bytes, view: str) -> None:
        await self.one.master.set_policy(path, Policy(view=view), ())

    async def check(self) -> None:
        """The invariants, once no fill is in flight."""
        await until(lambda: not len(self.one.tier._catalog))
        async with self.one.tier.contents.trees_change:
            self.one.check()

    async def look(self) -> None:
        """Lets the time pass after which directories count as quiet."""
        for _ in range(2):
            self.time.added_s += automatic.QUIET_S + 1
            await self.one.views.automatic.step()
            await self.settled()

    async def settled(self) -> None:
        views = self.one.views
        while any(view.status().state in self.unsettled for view in views.all()):
            await asyncio.sleep(0.005)

    async def stuck(self) -> None:
        """Lets the time pass after which a view that no mount shows is ended."""
        await self.one.views.automatic.step()
        self.time.added_s += automatic.STUCK_S + 1
        await self.one.views.automatic.step()

    async def covered(self) -> list[bytes]:
        await self.look()
        return sorted(self.mount.trees())


@contextlib.asynccontextmanager
async def rig(
    tmp_path: Path, origin: KeptOrigin, limit_bytes: int = 64 * MIB
) -> AsyncIterator[Rig]:
    time = Time()
    async with node(tmp_path, origin, limit_bytes=limit_bytes, clocks=time.clocks) as one:
        yield Rig(one, await one.mount(), time)


def test_a_complete_directory_is_covered_and_nothing_else(tmp_path: Path) -> None:
    async def script() -> None:
        origin = origin_with()
        async with rig(tmp_path, origin) as it:
            await it.policy(b"train", "auto")
            await it.read(b"train/a")
            await it.read(b"other")
            reads = origin.script.calls["open"]
            assert await it.covered() == [b"train/a"]
            assert it.mount.trees() == {b"train/a": await it.one.expected(b"train/a")}
            assert origin.script.calls["open"] == reads  # nothing was loaded for it
            await it.read(b"train/b")
            assert await it.covered() == [b"train"]  # the higher one takes its place
            assert it.mount.trees() == {b"train": await it.one.expected(b"train")}
            assert not (await it.one.master.policies_at(b"train")).policy.pin
            await it.check()

    run(script())


def test_without_the_policy_nothing_is_covered(tmp_path: Path) -> None:
    async def script() -> None:
        async with rig(tmp_path, origin_with()) as it:
            await it.read(b"")
            assert await it.covered() == []
            await it.policy(b"", "auto")
            assert await it.covered() == [b""]
            await it.policy(b"", "never")
            assert await it.covered() == []
            assert it.one.views.table(it.one.namespace).views == []
            await it.check()

    run(script())


def test_a_directory_that_just_changed_is_not_covered(tmp_path: Path) -> None:
    async def script() -> None:
        async with rig(tmp_path, origin_with()) as it:
            await it.policy(b"train", "auto")
            await it.read(b"train")
            await it.one.views.automatic.step()
            await it.settled()
            assert it.mount.trees() == {}
            assert await it.covered() == [b"train"]

    run(script())


def test_a_change_uncovers_and_a_view_that_stays_incomplete_ends(tmp_path: Path) -> None:
    async def script() -> None:
        origin = origin_with()
        async with rig(tmp_path, origin) as it:
            await it.policy(b"train", "auto")
            await it.read(b"train")
            assert await it.covered() == [b"train"]
            origin.put(b"train/a/f1", b"changed")
            await it.one.sync(b"train")
            assert it.mount.trees() == {}
            await it.stuck()
            assert it.one.views.table(it.one.namespace).views == []
            await it.check()
            await it.read(b"train")
            assert await it.covered() == [b"train"]  # after the pause
            assert it.mount.trees() == {b"train": await it.one.expected(b"train")}

    run(script())


def test_freeze_takes_the_place_and_thaw_names_the_policy(tmp_path: Path) -> None:
    async def script() -> None:
        async with rig(tmp_path, origin_with()) as it:
            await it.policy(b"train", "native")
            await it.read(b"train/a")
            assert await it.covered() == [b"train/a"]
            (status,) = it.one.views.table(it.one.namespace).views
            assert status.policy == "native"
            with pytest.raises(InUse) as refused:
                await it.one.views.thaw(it.one.namespace, b"train/a")
            assert "view=never" in refused.value.one_line()
            assert (await it.one.freeze(b"train/a")).policy == ""
            assert await it.covered() == [b"train/a"]
            await it.one.views.thaw(it.one.namespace, b"train/a")
            assert it.mount.trees() == {}

    run(script())


def test_a_view_without_mounts_ends(tmp_path: Path) -> None:
    async def script() -> None:
        async with rig(tmp_path, origin_with()) as it:
            await it.policy(b"train", "auto")
            await it.read(b"train")
            assert await it.covered() == [b"train"]
            it.one.views.left(it.mount, is_followed=False)
            it.mount.close()
            await it.one.views.automatic.step()
            assert it.one.views.table(it.one.namespace).views
            await it.stuck()
            assert it.one.views.table(it.one.namespace).views == []

    run(script())


def test_a_view_that_no_mount_can_show_ends(tmp_path: Path) -> None:
    async def script() -> None:
        async with rig(tmp_path, origin_with()) as it:
            it.mount.refuses = True
            it.unsettled = ["building"]
            await it.policy(b"train", "auto")
            await it.read(b"train")
            assert await it.covered() == []
            await it.stuck()
            assert it.one.views.table(it.one.namespace).views == []
            await it.check()

    run(script())


def test_it_is_the_same_view_after_a_restart(tmp_path: Path) -> None:
    async def script() -> None:
        origin = origin_with()
        async with rig(tmp_path, origin) as it:
            await it.policy(b"train", "auto")
            await it.read(b"train")
            assert await it.covered() == [b"train"]
            kept, it.mount.covers = it.mount.covers, {}
        async with node(tmp_path, origin, clocks=Time().clocks) as one:
            mount = await one.mount("/m", kept)
            await one.covered(b"train")
            assert (mount.laid, one.view(b"train").record.policy) == (0, "auto")
            await one.views.automatic.step()
            assert [*mount.trees()] == [b"train"]

    run(script())


def large(origin: KeptOrigin, path: bytes, count: int) -> None:
    for number in range(count):
        origin.put(path + b"/f%d" % number, bytes([number]) * MIB)


@pytest.mark.parametrize("admission", ["fill", "always"])
def test_a_view_gives_way_to_data_that_finds_no_room(tmp_path: Path, admission: str) -> None:
    async def script() -> None:
        origin = KeptOrigin()
        large(origin, b"train", 14)
        large(origin, b"new", 14)
        async with rig(tmp_path, origin, 32 * MIB) as it:
            await it.policy(b"train", "auto")
            await it.one.master.set_policy(b"new", Policy(admission=admission), ())
            await it.read(b"train")
            assert await it.covered() == [b"train"]
            it.time.added_s += 2.0  # last uses are in whole seconds
            await it.read(b"new")
            await it.one.views.automatic.step()
            if admission == "fill":  # its files may be in use
                assert [*it.mount.trees()] == [b"train"]
                it.time.added_s += it.one.tier.idle_after_s
                await it.read(b"new")
                await it.one.views.automatic.step()
            assert it.mount.trees() == {}
            assert await it.covered() == []  # not again at once
            await it.check()

    run(script())


def test_a_load_takes_the_room_of_views(tmp_path: Path) -> None:
    """`freeze` loads: what a policy covered gives way at once, what is frozen does not."""

    async def script() -> None:
        origin = KeptOrigin()
        large(origin, b"train", 14)
        large(origin, b"new", 14)
        large(origin, b"more", 14)
        async with rig(tmp_path, origin, 32 * MIB) as it:
            await it.policy(b"train", "auto")
            await it.read(b"train")
            assert await it.covered() == [b"train"]
            assert (await it.one.freeze(b"new")).state == "covered"
            assert [*it.mount.trees()] == [b"new"]
            assert (await it.one.freeze(b"more")).state == "impossible"
            assert [*it.mount.trees()] == [b"new"]
            await it.check()

    run(script())
