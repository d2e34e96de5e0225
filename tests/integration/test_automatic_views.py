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

from cachefs.core.errors import InUse, Unreachable
from cachefs.core.model import Kind
from cachefs.core.policies import Policy
from tests.integration.test_views import run
from tests.integration.views_rig import INTERVAL_S, MIB, FakeMount, KeptOrigin, Node, node
from tests.unit.worker.rig import until
from worker.runtime.clocks import Clocks
from worker.store import tree_watches
from worker.views import automatic, choice
from worker.views.automatic import AutomaticViews
from worker.views.view import View

LEAST = 10
RUN = AutomaticViews.run


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
    monkeypatch.setattr(choice, "VIEW_LEAST_FILES", LEAST)
    # Tests call `step`: one of the worker's own beside it would take what this one is to do.
    monkeypatch.setattr(AutomaticViews, "run", lambda _: asyncio.Event().wait())


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
        top = (await self.one.master.resolve(path)).inode
        assert top is not None
        async for batch in self.one.master.walk(top.ino):
            for _, inode in batch:
                if inode.kind is Kind.FILE:
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

    async def look(self, *in_use: bytes) -> None:
        """Lets the time pass after which directories count as quiet. `in_use`: paths that readers
        use meanwhile."""
        for _ in range(2):
            self.time.added_s += automatic.QUIET_S + 1
            for path in in_use:
                await self.read(path)
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

    async def covered(self, *in_use: bytes) -> list[bytes]:
        await self.look(*in_use)
        return sorted(self.mount.trees())

    async def none_left(self) -> None:
        """No view is left, once the trees of those that have ended are removed."""
        await self.one.removed()
        assert self.one.views.table(self.one.namespace).views == []

    def view(self, path: bytes) -> View:
        return self.one.view(path)

    async def compare(self, path: bytes) -> View:
        """Lets the sync interval pass after which a view is compared."""
        view = self.view(path)
        before, walk = sum(view.uncovers.values()), view._walk
        self.time.added_s += INTERVAL_S + 1
        view._woken.set()
        while view._walk is walk and sum(view.uncovers.values()) == before:
            await asyncio.sleep(0.005)
        return view

    def use(self, path: bytes = b"train/a/f1") -> None:
        """Opens a file by a cover, as a reader of the mount does."""
        for top, fd in self.mount.covers.values():
            if path.startswith(top):
                below = path[len(top) :].lstrip(b"/")
                os.close(os.open(b"/proc/self/fd/%d/%s" % (fd, below), os.O_RDONLY))


@contextlib.asynccontextmanager
async def rig(
    tmp_path: Path, origin: KeptOrigin, limit_bytes: int = 64 * MIB, at_root: str = "never"
) -> AsyncIterator[Rig]:
    """`at_root`: the policy of everything for which a test sets no other."""
    time = Time()
    async with node(tmp_path, origin, limit_bytes=limit_bytes, clocks=time.clocks) as one:
        if at_root:
            await one.master.set_policy(b"", Policy(view=at_root), ())
        yield Rig(one, await one.mount(), time)


def test_a_complete_directory_is_covered_and_nothing_else(tmp_path: Path) -> None:
    async def script() -> None:
        origin = origin_with()
        async with rig(tmp_path, origin) as it:
            await it.policy(b"train", "auto")
            await it.read(b"train/a")
            await it.read(b"other")
            reads = origin.script.calls["read"]
            assert await it.covered(b"train/a", b"other") == [b"train/a"]
            assert it.mount.trees() == {b"train/a": await it.one.expected(b"train/a")}
            assert origin.script.calls["read"] == reads  # nothing was loaded for it
            await it.read(b"train")
            assert await it.covered(b"train/b") == [b"train"]  # the higher one takes its place
            assert it.mount.trees() == {b"train": await it.one.expected(b"train")}
            assert not (await it.one.master.policies_at(b"train")).policy.pin
            await it.check()

    run(script())


def test_auto_is_the_default(tmp_path: Path) -> None:
    async def script() -> None:
        async with rig(tmp_path, origin_with(), at_root="") as it:
            await it.read(b"")
            assert await it.covered(b"") == [b""]
            await it.policy(b"", "never")
            assert await it.covered(b"") == []
            await it.none_left()
            await it.check()

    run(script())


def test_native_below_auto_is_covered_without_use(tmp_path: Path) -> None:
    """All is complete, so `auto` covers all of it, as long as it is used, and not for a while after
    that."""

    async def script() -> None:
        async with rig(tmp_path, origin_with(), at_root="") as it:
            await it.read(b"")
            assert await it.covered(b"other") == [b""]
            for _ in range(2):  # the first one finds the uses by `covered`
                await it.compare(b"")
            assert await it.covered() == []
            await it.policy(b"train", "native")
            assert await it.covered() == [b"train"]
            assert await it.covered(b"other") == [b"other", b"train"]
            for _ in range(2):
                await it.compare(b"other")
            assert await it.covered() == [b"train"]
            await it.check()

    run(script())


def test_a_survey_that_failed_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing changes and nobody reads meanwhile, as after a load."""

    async def fail(*_: object) -> None:
        raise Unreachable("the master does not answer")

    async def script() -> None:
        async with rig(tmp_path, origin_with()) as it:
            await it.policy(b"train", "native")
            await it.read(b"train")
            with monkeypatch.context() as failing:
                failing.setattr(automatic, "survey", fail)
                await it.one.views.automatic.step()
            assert await it.covered() == [b"train"]
            await it.check()

    run(script())


def test_what_was_never_listed_is_not_listed_for_it(tmp_path: Path) -> None:
    async def script() -> None:
        origin = origin_with()
        async with rig(tmp_path, origin, at_root="") as it:
            await it.read(b"train/a")
            calls = origin.calls["list_dir"]
            assert await it.covered(b"train/a") == [b"train/a"]
            assert origin.calls["list_dir"] == calls
            await it.read(b"train/b")  # `train` itself was not listed
            assert await it.covered(b"train/b") == [b"train/a", b"train/b"]
            await it.read(b"train")
            assert await it.covered(b"train/b") == [b"train"]
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
            assert await it.covered(b"train") == [b"train"]

    run(script())


def test_a_change_uncovers_and_a_view_that_stays_incomplete_ends(tmp_path: Path) -> None:
    async def script() -> None:
        origin = origin_with()
        async with rig(tmp_path, origin) as it:
            await it.policy(b"train", "auto")
            assert await it.covered(b"train") == [b"train"]
            origin.put(b"train/a/f1", b"changed")
            await it.one.sync(b"train")
            assert it.mount.trees() == {}
            await it.stuck()
            await it.none_left()
            await it.check()
            await it.read(b"train")
            assert await it.covered(b"train") == [b"train"]  # after the pause
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
            assert await it.covered(b"train") == [b"train"]
            it.one.views.left(it.mount, is_followed=False)
            it.mount.close()
            await it.one.views.automatic.step()
            assert it.one.views.table(it.one.namespace).views
            await it.stuck()
            await it.none_left()

    run(script())


def test_a_view_that_no_mount_can_show_ends(tmp_path: Path) -> None:
    async def script() -> None:
        async with rig(tmp_path, origin_with()) as it:
            it.mount.refuses = True
            it.unsettled = ["building"]
            await it.policy(b"train", "auto")
            assert await it.covered(b"train") == []
            await it.stuck()
            await it.none_left()
            await it.check()

    run(script())


def test_it_is_the_same_view_after_a_restart(tmp_path: Path) -> None:
    async def script() -> None:
        origin = origin_with()
        async with rig(tmp_path, origin) as it:
            await it.policy(b"train", "auto")
            assert await it.covered(b"train") == [b"train"]
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


@contextlib.asynccontextmanager
async def crowded(tmp_path: Path, admission: str) -> AsyncIterator[Rig]:
    """`train` is covered and was not used for two seconds; `new`, which is not cached, has no room
    beside it."""
    origin = KeptOrigin()
    large(origin, b"train", 14)
    large(origin, b"new", 14)
    async with rig(tmp_path, origin, 32 * MIB) as it:
        await it.policy(b"train", "auto")
        await it.one.master.set_policy(b"new", Policy(admission=admission), ())
        assert await it.covered(b"train") == [b"train"]
        for _ in range(2):  # looks: one that finds the uses by `covered`, and one that does not
            await it.view(b"train").look_at_use()
        it.time.added_s += 2.0  # last uses are in whole seconds
        yield it


@pytest.mark.parametrize("admission", ["fill", "always"])
def test_a_view_gives_way_to_data_that_finds_no_room(tmp_path: Path, admission: str) -> None:
    async def script() -> None:
        async with crowded(tmp_path, admission) as it:
            await it.read(b"new")
            await it.one.views.automatic.step()
            if admission == "fill":  # it was not idle for long enough
                assert [*it.mount.covers.values()]
                it.time.added_s += it.one.tier.idle_after_s
                await it.read(b"new")
                await it.one.views.automatic.step()
            assert it.mount.trees() == {}
            assert await it.covered() == []  # not again at once
            await it.check()

    run(script())


def test_a_view_gives_way_as_soon_as_data_finds_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker does not wait for its next look."""
    monkeypatch.setattr(AutomaticViews, "run", RUN)
    monkeypatch.setattr(automatic, "LOOK_S", 3600.0)

    async def script() -> None:
        async with crowded(tmp_path, "always") as it:
            await it.read(b"new")
            await until(lambda: not it.mount.covers)
            await it.check()

    run(script())


def test_a_view_in_use_does_not_give_way_to_what_readers_bring(tmp_path: Path) -> None:
    async def script() -> None:
        origin = KeptOrigin()
        large(origin, b"train", 14)
        large(origin, b"new", 14)
        async with rig(tmp_path, origin, 32 * MIB) as it:
            await it.policy(b"train", "auto")
            assert await it.covered(b"train") == [b"train"]
            for _ in range(3):
                it.time.added_s += it.one.tier.idle_after_s
                it.use(b"train/f1")
                await it.read(b"new")
                await it.one.views.automatic.step()
                it.use(b"train/f1")
                await it.compare(b"train")
            assert [*it.mount.trees()] == [b"train"]
            assert it.view(b"train").uncovers == {}
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
            assert await it.covered(b"train") == [b"train"]
            assert (await it.one.freeze(b"new")).state == "covered"
            assert [*it.mount.trees()] == [b"new"]
            assert (await it.one.freeze(b"more")).state == "impossible"
            assert [*it.mount.trees()] == [b"new"]
            await it.check()

    run(script())


# ---- use ----


def test_a_cover_without_use_goes_without_a_request(tmp_path: Path) -> None:
    """[S-views-unused] Its names are not requested from the origin; it is covered again after a
    use, and after the pause."""

    async def script() -> None:
        origin = origin_with()
        async with rig(tmp_path, origin, at_root="") as it:
            assert await it.covered(b"") == [b""]
            calls = origin.calls.copy()
            await it.compare(b"")  # those were uses
            assert origin.calls["list_dir"] > calls["list_dir"]
            calls = origin.calls.copy()
            view = await it.compare(b"")
            assert (view.uncovers, view.is_unused) == ({"unused": 1}, True)
            assert it.mount.trees() == {}
            await it.one.views.automatic.step()
            await it.none_left()
            assert it.one.views.status()["uncovers"] == {"unused": 1}
            keys = [*it.one.tier.order.keys()]
            uses = [it.one.tier.order.last_use_s(key) for key in keys]
            assert min(uses) <= view.used_s  # released as last used then
            assert await it.covered() == []  # nothing uses it
            assert origin.calls == calls
            it.time.added_s += choice.MOST_REST_S
            assert await it.covered(b"") == [b""]
            assert it.mount.trees() == {b"": await it.one.expected(b"")}
            await it.check()

    run(script())


def test_a_cover_in_use_is_compared_and_stays(tmp_path: Path) -> None:
    async def script() -> None:
        origin = origin_with()
        async with rig(tmp_path, origin) as it:
            await it.policy(b"train", "auto")
            assert await it.covered(b"train") == [b"train"]
            for turn in range(3):
                it.use(b"train/%s/f%d" % (b"ab"[turn % 2 :][:1], turn))
                await it.view(b"train").look_at_use()  # looks between do not count it away
                assert (await it.compare(b"train")).uncovers == {}
            (cover,) = it.mount.covers
            origin.put(b"train/a/f1", b"changed")
            it.use()
            assert (await it.compare(b"train")).uncovers == {"changed": 1}
            assert cover not in it.mount.covers
            await it.read(b"train")
            await it.one.covered(b"train")
            assert it.mount.trees() == {b"train": await it.one.expected(b"train")}
            await it.check()

    run(script())


def test_one_open_in_a_thousand_directories_is_seen(tmp_path: Path) -> None:
    async def script() -> None:
        origin = KeptOrigin()
        for number in range(1000):
            origin.put(b"train/c%d/f" % number, b"x")
        async with rig(tmp_path, origin) as it:
            await it.policy(b"train", "auto")
            assert await it.covered(b"train") == [b"train"]
            for number in range(0, 1000, 7):
                it.use(b"train/c%d/f" % number)
            assert (await it.compare(b"train")).uncovers == {}
            it.use(b"train/c7/f")
            assert (await it.compare(b"train")).uncovers == {}
            assert (await it.compare(b"train")).uncovers == {"unused": 1}

    run(script())


def test_after_a_start_a_cover_counts_as_used_once(tmp_path: Path) -> None:
    async def script() -> None:
        origin = origin_with()
        async with rig(tmp_path, origin) as it:
            await it.policy(b"train", "auto")
            assert await it.covered(b"train") == [b"train"]
            kept, it.mount.covers = it.mount.covers, {}
        calls = origin.calls["list_dir"]
        async with node(tmp_path, origin, clocks=it.time.clocks) as one:
            again = Rig(one, await one.mount("/m", kept), it.time)
            await one.covered(b"train")
            assert again.mount.laid == 0
            while not again.view(b"train").uncovers:  # one comparison may have been before
                await again.compare(b"train")
            assert again.view(b"train").uncovers == {"unused": 1}
            assert origin.calls["list_dir"] > calls

    run(script())


def test_too_many_directories_are_not_covered_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "MOST_DIRECTORIES", 1)

    async def script() -> None:
        async with rig(tmp_path, origin_with()) as it:
            await it.policy(b"train", "auto")
            assert await it.covered(b"train") == [b"train/a", b"train/b"]
            train, *_ = it.one.views.table(it.one.namespace).views
            assert (train.path, train.state, train.files) == (b"train", "impossible", 40)
            assert "3 directories" in train.reason
            assert "train" in [row["path"].strip("/") for row in it.one.views.status()["rows"]]
            assert (await it.one.freeze(b"train")).state == "covered"
            await it.look(b"train")
            (train,) = it.one.views.table(it.one.namespace).views
            assert (train.path, train.state) == (b"train", "covered")

    run(script())


def test_where_use_cannot_be_seen_auto_covers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_watches, "MOST_WATCHES", 2)

    async def script() -> None:
        async with rig(tmp_path, origin_with()) as it:
            await it.policy(b"train", "auto")
            assert await it.covered(b"train") == []
            (train,) = it.one.views.table(it.one.namespace).views
            assert (train.state, train.covers) == ("impossible", 0)
            assert "max_user_watches" in train.reason
            await it.stuck()
            await it.none_left()
            assert (await it.one.freeze(b"train")).state == "covered"
            await it.check()

    run(script())
