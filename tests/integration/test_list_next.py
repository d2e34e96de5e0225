"""The hint that a directory was read to its end: what comes next in the listing above is listed,
once, where that is of use."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachefs.core.errors import AccessDenied, CacheFSError, Stale, Throttled, Unreachable
from cachefs.core.policies import Policy
from connectors.base import Page
from master.directories import NEXT
from master.namespace import Master
from tests.integration.test_master import Clock, ino_of, names_of, opened, raises, run
from tests.integration.test_mount_table import X, Y, cluster, inode_of
from tests.services.memory import MemoryConnector

A, B, ABOVE = b"t/a", b"t/b", b"t"


class Origin(MemoryConnector):
    """Files of some directories, and which directories were listed."""

    def __init__(self, *paths: bytes, page_entries: int = 1000) -> None:
        super().__init__(dict.fromkeys(paths, b"1"), page_entries=page_entries)

    def list_dir(self, path: bytes) -> Iterator[Page]:
        """The third page goes through a gate: the first is in the store then."""
        for n, page in enumerate(super().list_dir(path)):
            if n == 2:
                self.script.enter("third page", path)
            yield page

    @property
    def listed(self) -> dict[bytes, int]:
        counts = self.script.calls_by_path.items()
        return {path: n for (verb, path), n in counts if verb == "list_dir"}


def two() -> Origin:
    """Two directories with a file each."""
    return Origin(A + b"/f", B + b"/f")


async def known(master: Master, *directories: bytes) -> None:
    for directory in directories:
        await names_of(master, await ino_of(master, directory))


# ---- what is listed ------------------------------------------------------------------------------


def test_the_directory_behind_is_listed_and_the_one_above_to_find_it(tmp_path: Path) -> None:
    async def work() -> None:
        origin = Origin(A + b"/f", b"t/a.txt", b"t/aa", B + b"/f", b"t/c/f")
        async with opened(tmp_path, origin, Clock()) as master:
            await master.list_next(await ino_of(master, A + b"/f"))
            assert origin.listed == {ABOVE: 1, B: 1}
            found = master.lookup_nowait(await ino_of(master, B), b"f")
            assert found is not None, "its names are known"
            await master.list_next(await ino_of(master, B + b"/f"))
            assert origin.listed == {ABOVE: 1, B: 1, b"t/c": 1}

    run(work())


def test_what_is_above_is_listed_once_though_it_is_not_fresh_for_long(tmp_path: Path) -> None:
    async def work() -> None:
        clock, origin = Clock(), two()
        async with opened(tmp_path, origin, clock) as master:
            file = await ino_of(master, A + b"/f")
            for times in (1, 2, 3):
                await master.list_next(file)
                await master.list_next(file)
                assert origin.listed == {ABOVE: 1, B: times}, "again when it is no longer fresh"
                clock.now += 61
            origin.fail("list_dir", ABOVE, AccessDenied("now"))
            await raises(AccessDenied, master.list_dir(await ino_of(master, ABOVE), b"", 9))
            await master.list_next(file)
            assert origin.listed == {ABOVE: 2, B: 4}, "what is known of it is good enough"

    run(work())


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("files", [NEXT - 1, NEXT])
def test_only_so_many_names_behind_are_looked_at(
    tmp_path: Path, files: int, is_known: bool
) -> None:
    async def work() -> None:
        between = [b"t/a%02d" % n for n in range(files)]
        origin = Origin(A + b"/f", *between, B + b"/f", page_entries=3)
        async with opened(tmp_path, origin, Clock()) as master:
            file = await ino_of(master, A + b"/f")
            if is_known:
                await known(master, ABOVE)
            await master.list_next(file)
            assert origin.listed.get(B, 0) == (files < NEXT)

    run(work())


def test_a_listing_above_that_comes_slowly_is_followed_to_the_next_directory(
    tmp_path: Path,
) -> None:
    """Its first pages may end before one."""

    async def work() -> None:
        origin = Origin(A + b"/f", *(b"t/a%d" % n for n in range(8)), B + b"/f", page_entries=4)
        async with opened(tmp_path, origin, Clock()) as master:
            file, above = await ino_of(master, A + b"/f"), await ino_of(master, ABOVE)
            origin.block("third page")
            page = await master.list_dir(above, b"", 1000)
            assert page.next, "the rest of it is to come"
            hint = asyncio.create_task(master.list_next(file))
            await asyncio.to_thread(origin.wait_blocked, "third page")
            assert not hint.done()
            origin.unblock()
            await hint
            assert origin.listed == {ABOVE: 1, B: 1}

    run(work())


def test_it_returns_while_the_next_directory_is_still_being_listed(tmp_path: Path) -> None:
    async def work() -> None:
        origin = Origin(A + b"/f", *(b"t/b/%d" % n for n in range(9)), page_entries=4)
        async with opened(tmp_path, origin, Clock()) as master:
            file, following = await ino_of(master, A + b"/f"), await ino_of(master, B)
            origin.block("third page")
            await master.list_next(file)
            page = await master.list_dir(following, b"", 1000)
            assert page.entries
            assert page.next

    run(work())


def test_cancelled_the_listing_goes_on(tmp_path: Path) -> None:
    async def work() -> None:
        origin = two()
        async with opened(tmp_path, origin, Clock()) as master:
            file = await ino_of(master, A + b"/f")
            await known(master, ABOVE)
            origin.block("list_dir")
            hint = asyncio.create_task(master.list_next(file))
            await asyncio.to_thread(origin.wait_blocked, "list_dir")
            hint.cancel()
            with pytest.raises(asyncio.CancelledError):
                await hint
            origin.unblock()
            await known(master, B)
            assert origin.listed == {ABOVE: 1, B: 1}

    run(work())


# ---- where nothing is asked ----------------------------------------------------------------------


def test_nothing_is_asked_where_the_next_is_fresh_or_there_is_none(tmp_path: Path) -> None:
    async def work() -> None:
        origin = Origin(A + b"/f", B + b"/f", b"t/z", b"g")
        async with opened(tmp_path, origin, Clock()) as master:
            first, last = await ino_of(master, A + b"/f"), await ino_of(master, B + b"/f")
            await known(master, b"", ABOVE, B)
            asked = dict(origin.calls)
            for ino in (first, last, await ino_of(master, b"g"), await ino_of(master, b"")):
                await master.list_next(ino)
            assert origin.calls == asked

    run(work())


def test_nothing_is_asked_where_every_access_asks(tmp_path: Path) -> None:
    """What is listed ahead would be asked for again."""

    async def work() -> None:
        origin = two()
        async with opened(tmp_path, origin, Clock(), interval_s=0.0) as master:
            file = await ino_of(master, A + b"/f")
            await master.list_next(file)
            await known(master, ABOVE)
            await master.list_next(file)
            assert origin.listed == {ABOVE: 1}

    run(work())


def test_a_policy_says_so_of_the_next_directory_alone(tmp_path: Path) -> None:
    async def work() -> None:
        origin = two()
        async with opened(tmp_path, origin, Clock()) as master:
            file = await ino_of(master, A + b"/f")
            await master.set_policy(b"/" + B, Policy(sync_interval_s=0), [])
            await master.list_next(file)
            assert origin.listed == {ABOVE: 1}

    run(work())


@pytest.mark.parametrize("is_known", [False, True])
def test_nothing_is_asked_of_an_origin_that_is_down(tmp_path: Path, is_known: bool) -> None:
    async def work() -> None:
        origin = two()
        async with opened(tmp_path, origin, Clock()) as master:
            file = await ino_of(master, A + b"/f")
            if is_known:
                await known(master, ABOVE)
            origin.fail("stat", None, Unreachable("no route"))
            await raises(Unreachable, master.resolve(b"x"))
            asked = dict(origin.calls)
            await master.list_next(file)
            assert origin.calls == asked

    run(work())


def test_an_ino_that_is_gone_is_stale(tmp_path: Path) -> None:
    async def work() -> None:
        clock, origin = Clock(), two()
        async with opened(tmp_path, origin, clock) as master:
            replaced, gone = await ino_of(master, A + b"/f"), await ino_of(master, B + b"/f")
            origin.put(A + b"/f", b"22")
            origin.delete(B)
            clock.now += 61
            assert await ino_of(master, A + b"/f") != replaced
            assert (await master.resolve(B)).inode is None
            for ino in (replaced, gone, 4711):
                await raises(Stale, master.list_next(ino))
            assert origin.listed == {}

    run(work())


# ---- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [ABOVE, B])
@pytest.mark.parametrize("error", [AccessDenied("no"), Unreachable("no route"), Throttled("busy")])
def test_what_the_origin_answers_is_raised(
    tmp_path: Path, where: bytes, error: CacheFSError
) -> None:
    async def work() -> None:
        origin = two()
        async with opened(tmp_path, origin, Clock()) as master:
            file = await ino_of(master, A + b"/f")
            origin.fail("list_dir", where, error)
            await raises(type(error), master.list_next(file))

    run(work())


# ---- many sources --------------------------------------------------------------------------------


def test_the_next_directory_may_be_another_source(tmp_path: Path) -> None:
    async def work() -> None:
        x, y = Origin(b"f"), Origin(b"g")
        async with cluster(tmp_path, Clock(), x, y) as master:
            await master.add_ufs(b"/data/x", X, x, 60.0)
            await master.add_ufs(b"/data/y", Y, y, 60.0)
            first, last = await inode_of(master, b"/data/x/f"), await inode_of(master, b"/data/y/g")
            await master.list_next(first.ino)
            assert (x.listed, y.listed) == ({}, {b"": 1})
            await master.list_next(first.ino)
            await master.list_next(last.ino)
            assert (x.listed, y.listed) == ({}, {b"": 1})
            await master.mounts.remove(b"/data/y")
            await master.list_next(first.ino)
            await raises(Stale, master.list_next(last.ino))
            assert (x.listed, y.listed) == ({}, {b"": 1})

    run(work())


def test_a_source_inside_another_that_is_down_is_left_alone(tmp_path: Path) -> None:
    async def work() -> None:
        clock, outer, inner = Clock(), Origin(b"a/f"), Origin(b"g")
        async with cluster(tmp_path, clock, outer, inner) as master:
            await master.add_ufs(b"/", X, outer, 60.0)
            await master.add_ufs(b"/b", Y, inner, 60.0)
            file = await inode_of(master, b"/a/f")
            inner.fail("list_dir", b"", Unreachable("no route"), times=9)
            root = await inode_of(master, b"/b")
            await raises(Unreachable, master.list_next(file.ino))
            await raises(Unreachable, master.list_dir(root.ino, b"", 9))
            asked = inner.listed
            await master.list_next(file.ino)
            assert inner.listed == asked
            assert outer.listed == {b"": 1}

    run(work())
