"""Views over a real master and a real cache: what covers show is what the mount shows."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cachefs.core.errors import NotADirectory, NotFound
from cachefs.core.model import ContentId
from cachefs.core.policies import Policy
from tests.integration.views_rig import (
    MIB,
    Covered,
    FakeKernel,
    FakeMount,
    KeptOrigin,
    Node,
    node,
    read_tree,
)
from tests.unit.worker.rig import descriptors, until
from worker.cache import tree_removals
from worker.store import tree_removal, trees
from worker.store.index import Index
from worker.store.tree_removal import RemovedNames
from worker.views import covers, view, views
from worker.views.pace import FIRST_S
from worker.views.walk import TreeWalk

LIMIT_S = 110.0  # only means not for ever: below the limit of a test


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await work

    before = descriptors()
    asyncio.run(bounded())
    assert not descriptors() - before


def origin_with(count: int = 20) -> KeptOrigin:
    origin = KeptOrigin()
    for number in range(count):
        origin.put(b"train/c%d/f%d" % (number % 3, number), b"%d " % number * 1000)
    origin.put(b"train/empty", b"")
    origin.put(b"train/\xff odd\n", b"odd", mode=0o600)
    origin.mkdir(b"train/no files")
    origin.symlink(b"train/link", b"c0/f0")
    origin.put(b"train/big", bytes(range(256)) * 4 * 5000)
    origin.put(b"other/file", b"x" * 100)
    return origin


def test_a_frozen_directory_is_covered_and_thawed(tmp_path: Path) -> None:
    async def script() -> None:
        async with node(tmp_path, origin_with()) as one:
            mount = await one.mount()
            status = await one.freeze(b"train")
            assert (status.state, status.files, status.covers) == ("covered", 23, 1), status
            assert mount.trees() == {b"train": await one.expected(b"train")}
            one.check()
            await one.views.thaw(one.namespace, b"train")
            assert not mount.covers
            (status,) = one.views.table(one.namespace).views
            assert (status.path, status.state, status.covers) == (b"train", "thawing", 0)
            await one.removed()
            assert one.views.table(one.namespace).views == []
            assert one.tier.contents.order.held_count in (0, 22)  # what was loaded for it

    run(script())


@pytest.mark.parametrize(("passes", "state"), [(2, "covered"), (9, "impossible")])
def test_names_that_expire_while_a_tree_is_built_are_compared_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: int, state: str
) -> None:
    """Only names that never are valid for long enough make a view impossible."""
    walks: list[TreeWalk] = []
    noted = TreeWalk._note_validity

    def note(walk: TreeWalk, valid_for_s: float) -> None:
        if walk not in walks:
            walks.append(walk)
        noted(walk, 0.0 if walks.index(walk) < passes else valid_for_s)

    async def script() -> None:
        async with node(tmp_path, origin_with()) as one:
            await one.mount()
            monkeypatch.setattr(TreeWalk, "_note_validity", note)
            status = await one.freeze(b"train")
            assert status.state == state, status
            assert ("valid for too short" in status.reason) is (state == "impossible")

    run(script())


def test_a_descriptor_of_a_tree_is_closed_if_no_one_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, may_open = threading.Event(), threading.Event()
    open_top = trees.open_top

    def slowly(*args: Any) -> int:
        opening.set()
        assert may_open.wait(LIMIT_S)
        return open_top(*args)

    async def script() -> None:
        async with node(tmp_path, origin_with()) as one:
            await one.mount()
            await one.freeze(b"train")
            monkeypatch.setattr(trees, "open_top", slowly)
            number = one.view(b"train").number
            opened = asyncio.create_task(one.tier.views.open_top(number))
            await asyncio.to_thread(opening.wait, LIMIT_S)
            opened.cancel()
            await asyncio.wait([opened])
            may_open.set()

    run(script())


def test_a_thaw_returns_before_its_tree_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[S-views-thaw]"""
    may_remove, remove = threading.Event(), tree_removal.remove

    def later(*args: Any) -> Iterator[RemovedNames]:
        assert may_remove.wait(LIMIT_S)
        yield from remove(*args)

    async def script() -> None:
        async with node(tmp_path, origin_with()) as one:
            mount = await one.mount()
            await one.freeze(b"train")
            first = one.view(b"train")
            monkeypatch.setattr(tree_removal, "remove", later)
            await one.views.thaw(one.namespace, b"train")
            assert not mount.covers
            (status,) = one.views.table(one.namespace).views
            assert (status.state, status.files) == ("thawing", 23)
            (row,) = one.views.status()["rows"]
            assert (row["path"], row["state"], row["files"]) == ("/train", "thawing", 23)
            await one.views.freeze(one.namespace, b"train/c0", wait=False)
            second = one.view(b"train/c0")
            await until(lambda: second.status().reason != "")
            assert "former tree" in second.status().reason
            assert second.status().state == "building"
            may_remove.set()
            await one.covered(b"train/c0")
            await one.removed()
            views = one.tier.disk.directory.index.views()
            assert [*views] == [second.number] != [first.number]
            assert mount.trees() == {b"train/c0": await one.expected(b"train/c0")}
            one.check()

    run(script())


def test_a_removal_continues_after_an_error_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_removals, "RETRY_S", 0.01)
    failures = [OSError(errno.EIO, "the disk fails")] * 3
    unlink = os.unlink

    def failing(path: Any, *args: Any, **options: Any) -> None:
        if failures and path == b"link":
            raise failures.pop()
        unlink(path, *args, **options)

    async def script() -> None:
        async with node(tmp_path, origin_with()) as one:
            await one.mount()
            await one.freeze(b"train")
            monkeypatch.setattr(os, "unlink", failing)
            await one.views.thaw(one.namespace, b"train")
            await one.removed()
            assert not failures
            assert one.tier.disk.directory.index.views() == {}
            one.check()

    run(script())


def test_contents_are_released_although_the_index_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else would: the records of the names are gone by then."""
    monkeypatch.setattr(tree_removals, "RETRY_S", 0.01)
    failures = [OSError(errno.EIO, "the index cannot be read")]
    right = Index.get_all

    def get_all(self: Index, keys: Sequence[bytes]) -> Any:
        if failures:
            raise failures.pop()
        return right(self, keys)

    async def script() -> None:
        async with node(tmp_path, origin_with()) as one:
            await one.mount()
            await one.freeze(b"train")
            with monkeypatch.context() as patch:
                patch.setattr(Index, "get_all", get_all)
                await one.views.thaw(one.namespace, b"train")
                await one.removed()
            assert not failures
            one.check()

    run(script())


def test_after_a_sync_no_cover_shows_the_old_names(tmp_path: Path) -> None:
    async def script() -> None:
        origin = origin_with()
        async with node(tmp_path, origin) as one:
            mount = await one.mount()
            await one.freeze(b"train")
            for change in range(3):
                origin.put(b"train/c0/f0", b"new %d" % change)
                origin.put(b"train/new%d/f" % change, b"n" * MIB)
                origin.delete(b"train/c1/f%d" % (1 + 3 * change))
                await one.sync(b"train")
                assert not mount.covers
                await one.covered(b"train")
                assert mount.trees() == {b"train": await one.expected(b"train")}
                one.check()

    run(script())


def test_the_worker_removes_the_cover_of_a_client_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(covers, "UNCOVER_S", 0.2)

    async def script() -> None:
        origin = origin_with()
        async with node(tmp_path, origin) as one:
            mount = await one.mount()
            await one.freeze(b"train")
            mount.hangs = True
            origin.put(b"train/c0/f0", b"new")
            await one.sync(b"train")
            assert not mount.covers
            mount.hangs = False
            await one.covered(b"train")
            assert mount.trees() == {b"train": await one.expected(b"train")}

    run(script())


def test_a_cover_that_the_worker_cannot_remove_shows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(covers, "UNCOVER_S", 0.2)

    async def script() -> None:
        origin = origin_with()
        async with node(tmp_path, origin) as one:
            one.kernel.is_blind = True
            mount = await one.mount()
            await one.freeze(b"train")
            mount.hangs = True
            origin.put(b"train/c0/f0", b"new")
            await one.sync(b"train")
            (shown,) = mount.trees().values()
            assert [*shown] == [b""]
            mount.hangs = False
            await one.covered(b"train")
            (forgotten, fresh) = [read_tree(fd) for _, fd in mount.covers.values()]
            assert [*forgotten] == [b""]
            assert fresh == await one.expected(b"train")

    run(script())


def test_after_a_restart_a_cover_that_could_not_be_removed_shows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(covers, "UNCOVER_S", 0.2)

    async def script() -> None:
        origin, kernel = origin_with(), FakeKernel()
        kernel.is_blind = True
        async with node(tmp_path, origin, kernel=kernel) as one:
            mount = await one.mount()
            await one.freeze(b"train")
            mount.hangs = True
            origin.put(b"train/c0/f0", b"new")
            await one.sync(b"train")
            left, mount.covers = mount.covers, {}
        async with node(tmp_path, origin, kernel=kernel) as one:
            mount = await one.mount("/other")
            await one.covered(b"train")
            assert mount.trees() == {b"train": await one.expected(b"train")}
            for _, fd in left.values():
                assert [*read_tree(fd)] == [b""]
                os.close(fd)

    run(script())


def test_the_successor_of_a_client_takes_its_covers_over(tmp_path: Path) -> None:
    async def script() -> None:
        origin = origin_with()
        async with node(tmp_path, origin) as one:
            first = await one.mount()
            await one.freeze(b"train")
            one.views.left(first, is_followed=True)
            assert one.view(b"train").covers.count == 1
            kept, first.covers = first.covers, {}
            second = await one.mount(first.mountpoint, kept)
            await asyncio.sleep(0)
            assert (one.view(b"train").covers.count, second.laid) == (1, 0)
            origin.put(b"train/c0/f0", b"new")
            await one.sync(b"train")
            assert not second.covers
            await one.covered(b"train")

    run(script())


def test_a_mount_that_ended_has_no_cover(tmp_path: Path) -> None:
    async def script() -> None:
        async with node(tmp_path, origin_with()) as one:
            mount = await one.mount()
            await one.freeze(b"train")
            one.views.left(mount, is_followed=False)
            assert one.view(b"train").status().state == "ready"
            await one.views.thaw(one.namespace, b"train")

    run(script())


def test_covers_outlive_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A successor finds the tree as it was, and nothing is laid or read again. It knows the covers,
    so the next change waits for no client that has none."""
    monkeypatch.setattr(covers, "UNCOVER_S", 10 * LIMIT_S)

    async def script() -> None:
        origin = origin_with()
        async with node(tmp_path, origin) as one:
            await one.mount()
            await one.freeze(b"train")
            kept, one.mounts[0].covers = one.mounts[0].covers, {}
        async with node(tmp_path, origin) as one:
            reads = origin.script.calls["read"]
            mount = await one.mount("/m", kept)
            await one.covered(b"train")
            assert mount.trees() == {b"train": await one.expected(b"train")}
            assert (mount.laid, origin.script.calls["read"]) == (0, reads)
            origin.put(b"train/c1/f1", b"new")
            await one.sync(b"train")
            assert not mount.covers
            await one.covered(b"train")

    run(script())


async def covered_before_a_change(tmp_path: Path, origin: KeptOrigin) -> Covered:
    """Returns the covers that a process has left: it was killed between a change and its event."""
    async with node(tmp_path, origin) as one:
        await one.mount()
        await one.freeze(b"train")
        kept, one.mounts[0].covers = one.mounts[0].covers, {}
        await one.views.close()
        origin.put(b"train/c0/f0", b"new")
        await one.sync(b"train")
    return kept


@pytest.mark.parametrize("is_blind", [False, True])
def test_a_cover_from_before_a_change_is_reported_and_removed_before_its_mount_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_blind: bool
) -> None:
    """Nothing is emptied: the client of the cover has reported, so it is known."""
    monkeypatch.setattr(views, "REACH_STEPS", 0)

    async def script() -> None:
        origin = origin_with()
        kept = await covered_before_a_change(tmp_path, origin)
        kernel = FakeKernel()
        kernel.is_blind = is_blind
        async with node(tmp_path, origin, kernel=kernel) as one:
            tree = one.view(b"train").number
            mount = await one.mount("/m", kept)
            assert not mount.covers
            await one.covered(b"train")
            assert mount.trees() == {b"train": await one.expected(b"train")}
            assert one.view(b"train").number != tree  # a client may yet find what was sent before

    run(script())


@pytest.mark.parametrize("is_blind", [False, True])
def test_a_cover_from_before_a_change_that_is_never_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_blind: bool
) -> None:
    """Its client is dead. The worker removes the cover, or, if it cannot, empties the tree."""
    monkeypatch.setattr(covers, "UNCOVER_S", 0.2)
    monkeypatch.setattr(views, "REACH_STEPS", 0)

    async def script() -> None:
        origin = origin_with()
        kept = await covered_before_a_change(tmp_path, origin)
        kernel = FakeKernel()
        kernel.is_blind = is_blind
        kernel.tables.append(kept)
        async with node(tmp_path, origin, kernel=kernel) as one:
            mount = await one.mount()
            await one.covered(b"train")
            assert [[*read_tree(fd)] for _, fd in kept.values()] == ([[b""]] if is_blind else [])
            assert mount.trees() == {b"train": await one.expected(b"train")}
        for _, fd in kept.values():
            os.close(fd)

    run(script())


def test_a_cover_that_another_program_removed_is_laid_again_soon(tmp_path: Path) -> None:
    async def script() -> None:
        async with node(tmp_path, origin_with()) as one:
            mount = await one.mount()
            await one.freeze(b"train")
            ((cover, (_, fd)),) = mount.covers.items()
            os.close(fd)
            del mount.covers[cover]
            began_s = time.monotonic()
            one.views.reported(mount, cover, covered=False, reason="the kernel removed it")
            while not mount.covers:
                await asyncio.sleep(0.01)
            assert time.monotonic() - began_s < view.LAY_AGAIN_S / 2
            assert mount.trees() == {b"train": await one.expected(b"train")}

    run(script())


def test_contents_of_a_view_are_dropped_only_after_its_covers(tmp_path: Path) -> None:
    async def script() -> None:
        async with node(tmp_path, origin_with()) as one:
            mount = await one.mount()
            await one.freeze(b"train")
            inode = (await one.master.resolve(b"train/c0/f0")).inode
            assert inode is not None
            freed = await one.cache.free([ContentId.of(one.namespace, inode)])
            assert (freed.files, freed.busy_files) == (1, 0)
            assert not mount.covers
            one.check()
            await one.covered(b"train")  # it is loaded again
            assert mount.trees() == {b"train": await one.expected(b"train")}

    run(script())


def test_a_damaged_file_is_uncovered_and_loaded_again(tmp_path: Path) -> None:
    async def script() -> None:
        async with node(tmp_path, origin_with()) as one:
            mount = await one.mount()
            await one.freeze(b"train")
            inode = (await one.master.resolve(b"train/c0/f0")).inode
            assert inode is not None
            key = ContentId.of(one.namespace, inode).key
            fd = one.tier.disk.directory.open_file(key.hex())
            assert fd is not None
            os.pwrite(fd, b"damage", 0)
            os.close(fd)
            assert await one.tier.serving.doubt(key, [0])
            assert not mount.covers
            await one.covered(b"train")
            assert mount.trees() == {b"train": await one.expected(b"train")}

    run(script())


def test_a_view_is_held_while_the_cache_is_full(tmp_path: Path) -> None:
    async def script() -> None:
        origin = KeptOrigin()
        for number in range(16):
            origin.put(b"train/f%d" % number, bytes([number]) * MIB)
            origin.put(b"other/f%d" % number, bytes([number]) * (2 * MIB))
        async with node(tmp_path, origin, limit_bytes=64 * MIB) as one:
            mount = await one.mount()
            await one.freeze(b"train")
            async for batch in one.master.walk(1):
                for path, inode in batch:
                    if path.startswith(b"other"):
                        grant = await one.cache.open(one.namespace, inode.ino)
                        if grant.fd is not None:
                            os.close(grant.fd)
                        one.cache.release(grant.handle)
            one.tier._space._nothing_until_s = 0.0
            for _ in range(3):
                await one.tier._space.make_room_ahead(64 * MIB)
                await one.tier._space._make_room_thoroughly(64 * MIB, float("inf"))
            assert mount.trees() == {b"train": await one.expected(b"train")}
            assert one.tier.contents.order.held_count >= 16
            one.check()

    run(script())


def test_what_does_not_fit_is_refused_with_figures(tmp_path: Path) -> None:
    async def script() -> None:
        origin = KeptOrigin()
        for number in range(40):
            origin.put(b"train/f%d" % number, bytes([number]) * MIB)
        async with node(tmp_path, origin, limit_bytes=32 * MIB) as one:
            mount = await one.mount()
            status = await one.freeze(b"train")
            assert status.state == "impossible", status
            assert "of 40 files" in status.reason
            assert "MiB" in status.reason
            assert not mount.covers
            await one.views.thaw(one.namespace, b"train")
            await one.removed()
            assert not any(map(one.tier.contents.in_view, one.tier.contents.order.keys()))

    run(script())


def test_a_tier_that_leaves_service_is_uncovered(tmp_path: Path) -> None:
    async def script() -> None:
        async with node(tmp_path, origin_with()) as one:
            mount = await one.mount()
            await one.freeze(b"train")
            one.tier.disk.leave_service("it hangs")
            one.tier._service_changed(False)
            while mount.covers:
                await asyncio.sleep(0.001)
            one.tier.disk.return_to_service()
            one.tier._service_changed(True)
            await one.covered(b"train")
            assert mount.trees() == {b"train": await one.expected(b"train")}

    run(script())


def test_a_change_is_seen_within_the_sync_interval(tmp_path: Path) -> None:
    """[S-views-fresh]"""

    async def script() -> None:
        origin = origin_with()
        async with node(tmp_path, origin, interval_s=1.5) as one:
            mount = await one.mount()
            assert (await one.freeze(b"train")).state == "covered"
            origin.put(b"train/c2/f2", b"new bytes")
            began_s = time.monotonic()
            while mount.covers:
                await asyncio.sleep(0.01)
            assert time.monotonic() - began_s < 1.5 + 10  # on a busy machine
            await one.covered(b"train")
            assert mount.trees()[b"train"][b"c2/f2"].data == b"new bytes"

    run(script())


def test_names_that_are_never_valid_are_not_covered(tmp_path: Path) -> None:
    async def script() -> None:
        async with node(tmp_path, origin_with(), interval_s=0.0) as one:
            mount = await one.mount()
            status = await one.freeze(b"train")
            assert (status.state, mount.laid) == ("impossible", 0)
            assert "sync_interval" in status.reason

    run(script())


def test_the_highest_directory_is_covered(tmp_path: Path) -> None:
    async def script() -> None:
        async with node(tmp_path, origin_with()) as one:
            mount = await one.mount()
            await one.freeze(b"train/c0")
            assert [*mount.trees()] == [b"train/c0"]
            await one.freeze(b"train")
            assert [*mount.trees()] == [b"train"]
            assert (await one.freeze(b"train/c1")).path == b"train"
            assert await one.freeze(b"") == one.view(b"").status()
            assert mount.trees() == {b"": await one.expected(b"")}

    run(script())


def test_only_directories_that_exist_are_frozen(tmp_path: Path) -> None:
    async def script() -> None:
        async with node(tmp_path, origin_with()) as one:
            with pytest.raises(NotFound):
                await one.freeze(b"nothing")
            with pytest.raises(NotADirectory):
                await one.freeze(b"train/c0/f0")
            with pytest.raises(NotFound):
                await one.views.thaw(one.namespace, b"train")

    run(script())


def test_paths_below_a_frozen_directory_are_checked_too(tmp_path: Path) -> None:
    async def script() -> None:
        async with node(tmp_path, origin_with()) as one:
            await one.mount()
            await one.freeze(b"train")
            assert (await one.freeze(b"train/c0")).path == b"train"
            with pytest.raises(NotFound):
                await one.freeze(b"train/nothing")
            with pytest.raises(NotADirectory):
                await one.freeze(b"train/c0/f0")
            with pytest.raises(NotFound, match="not frozen") as raised:
                await one.views.thaw(one.namespace, b"train/c0")
            assert "/train" in raised.value.remedy

    run(script())


def test_a_freeze_ends_the_pause_of_a_view_that_waits(tmp_path: Path) -> None:
    async def script() -> None:
        origin = origin_with()
        async with node(tmp_path, origin) as one:
            mount = await one.mount()
            await one.freeze(b"train")
            began_s = time.monotonic()
            for _ in range(6):
                await one.view(b"train").uncover("changed")  # each pause is twice as long
                assert (await one.freeze(b"train")).state == "covered"
            assert time.monotonic() - began_s < FIRST_S * 2**5, "the last pause alone"
            assert mount.trees() == {b"train": await one.expected(b"train")}

    run(script())


def test_a_mount_with_other_attributes_is_not_covered(tmp_path: Path) -> None:
    async def script() -> None:
        async with node(tmp_path, origin_with()) as one:
            first = await one.mount("/a")
            other = FakeMount(one.views, "/b")
            other.defaults = 5, 5, 0o600, 0o700
            one.views.joined(other)
            status = await one.freeze(b"train")
            assert (status.covers, first.laid, other.laid) == (1, 1, 0)

    run(script())


def test_a_removed_directory_is_uncovered_and_waits(tmp_path: Path) -> None:
    async def script() -> None:
        origin = origin_with()
        async with node(tmp_path, origin) as one:
            mount = await one.mount()
            await one.freeze(b"train")
            origin.delete(b"train")
            await one.sync()
            assert not mount.covers
            origin.put(b"train/again", b"again")
            await one.sync()
            await one.covered(b"train")
            assert mount.trees() == {b"train": await one.expected(b"train")}

    run(script())


def test_a_freeze_pins_and_a_thaw_unpins(tmp_path: Path) -> None:
    async def script() -> None:
        async with node(tmp_path, origin_with()) as one:
            await one.mount()
            await one.freeze(b"train")
            assert (await one.master.policies_at(b"train")).policy.pin
            await one.views.thaw(one.namespace, b"train")
            assert not (await one.master.policies_at(b"train")).policy.pin
            await one.master.set_policy(b"train", Policy(pin=True), ())
            await one.freeze(b"train")
            await one.views.thaw(one.namespace, b"train")
            assert (await one.master.policies_at(b"train")).policy.pin

    run(script())


# ---- histories ----


@pytest.mark.parametrize("seed", range(12))
def test_random_histories_show_nothing_but_the_mounts_names(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[S-views] After every step each cover shows what the mount shows, a cover that a hung client
    keeps shows that or nothing, and the accounts are right."""
    monkeypatch.setattr(covers, "UNCOVER_S", 0.05)

    async def script() -> None:
        rng = random.Random(seed)
        origin = origin_with()
        for _ in range(3):
            async with node(tmp_path, origin) as one:
                mounts = [await one.mount("/a"), await one.mount("/b")]
                for _ in range(15):
                    await one_step(rng, one, mounts)
                    await check(one, mounts)

    async def check(one: Node, mounts: list[FakeMount]) -> None:
        for mount in mounts:
            for path, shown in [(path, read_tree(fd)) for path, fd in mount.covers.values()]:
                is_empty = [*shown] == [b""]
                assert is_empty or shown == await one.expected(path), (seed, path)
        one.tier.contents.ledger.check_invariants()

    run(script())


async def one_step(rng: random.Random, one: Node, mounts: list[FakeMount]) -> None:
    paths = [b"train", b"train/c0", b"train/c1", b"other", b""]
    path, mount = rng.choice(paths), rng.choice(mounts)
    match rng.choice(["freeze", "freeze", "thaw", "change", "change", "free", "hang", "cover"]):
        case "freeze" if not (mounts[0].hangs and mounts[1].hangs):
            with contextlib.suppress(NotFound):
                await one.freeze(path)
        case "thaw":
            with contextlib.suppress(NotFound):
                await one.views.thaw(one.namespace, path)
        case "change":
            change_origin(rng, one.origin)
            await one.sync()
        case "free":
            keys = [*one.tier.contents.order.keys()]
            some = rng.sample(keys, min(3, len(keys)))
            await one.cache.free([ContentId.of_key(key) for key in some])
        case "hang":
            mount.hangs = not mount.hangs
        case "cover":
            for view in one.views._views:
                view._due_s = 0.0
                view._woken.set()
            await asyncio.sleep(rng.random() / 50)


def change_origin(rng: random.Random, origin: KeptOrigin) -> None:
    files = [path for path in origin.files() if path.startswith(b"train/c")]
    match rng.choice(["replace", "add", "delete", "mkdir"]):
        case "replace" if files:
            origin.put(rng.choice(files), rng.randbytes(rng.randrange(1, 5000)))
        case "delete" if len(files) > 4:
            origin.delete(rng.choice(files))
        case "mkdir":
            origin.mkdir(b"train/c%d/d%d" % (rng.randrange(3), rng.randrange(9)))
        case _:
            origin.put(b"train/c%d/n%d" % (rng.randrange(3), rng.randrange(9)), rng.randbytes(99))
