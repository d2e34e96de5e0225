"""A master's policies over its store: who may evict what, when a pin returns, what is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachefs.core.errors import BadConfig, NotFound
from cachefs.core.model import ROOT_INO, ContentId, Origin
from cachefs.core.policies import PERMISSION_S, PERMISSION_WINDOW_S, Policy, Rule
from master.namespace import Master
from tests.integration.test_master import Clock, collect, opened, run
from tests.integration.test_mount_table import X, Y, cluster
from tests.services.memory import MemoryConnector

PIN = Policy(pin=True)


class Pauses:
    """Stands for the waits of a master's pins."""

    def __init__(self, master: Master) -> None:
        self.seconds: list[float] = []
        master._policies.pause = self

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


async def origin_of(master: Master, path: bytes) -> Origin:
    found = (await master.resolve(path)).inode
    assert found is not None, path
    return await master.locate(found.ino)


async def content(master: Master, path: bytes) -> ContentId:
    return (await origin_of(master, path)).content


def test_a_pin_waits_for_permissions_that_concern_it_and_for_no_others(tmp_path: Path) -> None:
    async def work() -> None:
        names = {b"a/f": b"1", b"a/g": b"2", b"ab": b"3"}
        async with opened(tmp_path, MemoryConnector(names), Clock()) as master:
            pauses = Pauses(master)
            f, g, ab = [await content(master, path) for path in sorted(names)]
            await master.set_policy(b"a/g", PIN, [])
            given = await master.permit_eviction([f, g, ab])
            assert given.allowed == {f.name, ab.name}
            assert given.valid_for_s == PERMISSION_S < PERMISSION_WINDOW_S
            await master.set_policy(b"a/g", PIN, [])
            await master.set_policy(b"/a/", PIN, [])
            assert pauses.seconds[:2] == [0.0, 0.0]
            assert PERMISSION_S < pauses.seconds[2] <= PERMISSION_WINDOW_S
            assert (await master.permit_eviction([f, g, ab])).allowed == {ab.name}
            await master.set_policy(b"a/f", Policy(pin=False), [])
            assert (await master.permit_eviction([f])).allowed == {f.name}
            await master.set_policy(b"a/f", Policy(), ["pin"])  # what is above holds again
            assert pauses.seconds[3] > PERMISSION_S
            assert (await master.permit_eviction([f])).allowed == set()

    run(work())


def test_a_master_that_starts_again_knows_of_no_permissions_and_waits(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, Clock()) as master:
            await master.add_ufs(b"/x", X, MemoryConnector({b"f": b"1"}), 60.0)
            Pauses(master)
            await master.set_policy(b"x", PIN, [])
        async with cluster(tmp_path, Clock()) as master:
            pauses = Pauses(master)
            assert (await master.policies_at(b"x/f")).policy.pin
            await master.set_policy(b"x", PIN, [])
            assert pauses.seconds[0] > PERMISSION_S

    run(work())


def test_a_replaced_object_and_another_source_keep_the_policies_of_their_path(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        clock, x = Clock(), MemoryConnector({b"f": b"1"})
        async with cluster(tmp_path, clock) as master:
            Pauses(master)
            await master.add_ufs(b"/data", X, x, 60.0)
            old = await content(master, b"data/f")
            await master.set_policy(b"data/f", PIN, [])
            x.put(b"f", b"22")
            clock.now += 61
            new = await content(master, b"data/f")
            assert new != old
            assert (await master.permit_eviction([old, new])).allowed == {old.name}
            await master.mounts.remove(b"/data")
            assert (await master.permit_eviction([new])).allowed == {new.name}
            await master.add_ufs(b"/data", Y, MemoryConnector({b"f": b"1"}), 60.0)
            other = await content(master, b"data/f")
            assert (await master.permit_eviction([new, other])).allowed == {new.name}

    run(work())


def test_workers_are_told_with_the_place_and_by_the_stream(tmp_path: Path) -> None:
    async def work() -> None:
        names = {b"a/f": b"1", b"b/f": b"2"}
        async with opened(tmp_path, MemoryConnector(names), Clock()) as master:
            a, b = await origin_of(master, b"a/f"), await origin_of(master, b"b/f")
            assert (a.rule, a.alone, b.rule) == (Rule(), False, Rule())
            position, version = master.position, master.policy_version
            await master.set_policy(b"a", Policy(ttl_s=5.0, quota_bytes=7), [])
            await master.set_policy(b"b/f", Policy(admission="always"), [])
            assert master.policy_version == version + 1  # the second concerns nothing cached
            events = await collect(master, position, 2)
            assert [(one.policies, one.times, one.entries) for one in events] == [
                (True, True, []),
                (True, False, []),
            ]
            await master.set_policy(b"b", PIN, [])  # there are times to live: it concerns them
            assert master.policy_version == version + 2
            await master.set_policy(b"b", Policy(), ["pin"])
            a, b = await origin_of(master, b"a/f"), await origin_of(master, b"b/f")
            assert (a.rule, a.alone) == (Rule(ttl_s=5.0, quotas=((b"a", 7),)), False)
            assert (b.rule, b.alone) == (Rule(admission="always"), True)
            gone = ContentId(master.namespace, 4711, 0, 1)
            assert await master.rules_of([b.content, gone, a.content]) == [b.rule, Rule(), a.rule]

    run(work())


def test_what_cannot_be_said(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path, MemoryConnector({b"f": b"1"}), Clock()) as master:
            with pytest.raises(NotFound):
                await master.set_policy(b"nix", PIN, [])
            await master.set_policy(b"nix", Policy(), ["pin"])  # what is gone is unset all the same
            with pytest.raises(BadConfig):
                await master.set_policy(b"f", Policy(sync_interval_s=1.0), [])
            with pytest.raises(BadConfig):
                await master.set_policy(b"f", Policy(ttl_s=0.1), [])
            with pytest.raises(BadConfig):
                await master.set_policy(b"f", Policy(), ["colour"])
            long = b"/".join([b"n" * 200] * 5)
            assert (await master.policies_at(long)).said == Policy()
            assert (await master.resolve(b"f")).inode is not None
            assert (await master.getattr(ROOT_INO)).inode is not None

    run(work())
