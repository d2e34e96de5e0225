"""What policies say of a content by its path: admission, and quotas."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest

from cachefs.core.jobs import FullQuota
from cachefs.core.policies import Rule
from tests.services.loading import fetch
from tests.unit.worker.rig import MIB, NAMESPACE, Rig, only, read, recorded, run
from tests.unit.worker.test_expiry import Ruled
from worker.cache.cache import Cache
from worker.tier.over_quota import AGAIN_S, MOST_KNOWN, Named, OverQuota

SIZE = 2 * MIB


def put(rig: Rig, ino: int, rule: Rule) -> None:
    rig.put(ino, SIZE)
    rig.space.origins[ino] = msgspec.structs.replace(rig.space.origins[ino], rule=rule)


async def cached(worker: Cache, rig: Rig, *inos: int) -> list[bool]:
    return [await worker.cached_bytes(rig.content(ino)) == SIZE for ino in inos]


def test_admission_by_path(tmp_path: Path) -> None:
    """In a full cache a path's own word decides, whatever the worker is set to."""

    async def script() -> None:
        for default, said in (("fill", "always"), ("always", "fill")):
            rig = Rig(tmp_path / default, 32 * MIB, admission=default)
            (tmp_path / default).mkdir()
            async with rig.worker() as worker:
                for ino in range(1, 16):
                    put(rig, ino, Rule())
                put(rig, 100, Rule(admission=said))
                put(rig, 101, Rule())
                for ino in (*range(1, 16), 100, 101):
                    assert await read(worker, ino) == rig.data[ino]
                    await recorded(worker)  # what is not recorded could not be evicted
                found = await cached(worker, rig, 100, 101)
                assert found == [
                    said == "always",
                    default == "always",
                ]

    run(script())


class Quoted(Ruled):
    """A namespace in which everything counts against one quota."""

    def put_all(self, quota_bytes: int) -> None:
        rule = Rule(quotas=((b"dir", quota_bytes),))
        for ino, origin in self.origins.items():
            self.origins[ino] = msgspec.structs.replace(origin, rule=rule)
            self.rules[ino] = rule
        self.policy_version += 1


FULL = "the quota of /dir has no room for it: 10 MiB of 10 MiB are used; give a larger one"


def test_a_quota_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Fills beyond it are refused, and read all the same; which quota it is, is said once in a
    while, with figures; a lower one frees what was used least; it is known again after a
    restart."""
    caplog.set_level(logging.INFO)

    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB)
        rig.space = space = Quoted()
        for ino in range(1, 11):
            rig.put(ino, SIZE)
        space.put_all(5 * SIZE + 4096)
        async with rig.worker() as worker:
            for ino in range(1, 11):
                rig.wall_s += 1
                assert await read(worker, ino) == rig.data[ino]
            assert await cached(worker, rig, *range(1, 11)) == [True] * 5 + [False] * 5
            assert caplog.text.count(FULL) == 1, "five files were refused"
            with pytest.raises(OverQuota) as refused:
                await fetch(worker, NAMESPACE, 9)
            assert refused.value.one_line().startswith(FULL)
            assert refused.value.full == FullQuota(
                b"dir", 10 * MIB + 4096, 10 * MIB, 10 * MIB + 4096
            )
            await only(worker).expirer.tick()
            assert worker.status()["quota_used_bytes"] == {"/dir": 5 * SIZE}
            await worker.free([rig.content(1)])
            await fetch(worker, NAMESPACE, 9)
            worker.used([rig.name(2)], 0)
        async with rig.worker() as worker:
            await only(worker).expirer.tick()
            with pytest.raises(OverQuota):
                await fetch(worker, NAMESPACE, 10)
            space.put_all(3 * SIZE)
            await only(worker).expirer.tick()
            assert worker.status()["quota_used_bytes"] == {"/dir": 3 * SIZE}
            assert await cached(worker, rig, 2, 9) == [True, True]
            space.put_all(0)
            for ino in space.rules:
                space.rules[ino] = Rule()
                space.origins[ino] = msgspec.structs.replace(space.origins[ino], rule=Rule())
            await only(worker).expirer.tick()
            await fetch(worker, NAMESPACE, 10)
            assert worker.status()["quota_used_bytes"] == {}

    run(script())


def test_a_full_quota_is_named_once_in_a_while() -> None:
    named = Named()
    full = FullQuota(b"a", 10, 9, 10)
    assert named.is_news(full, 1.0)
    assert not named.is_news(full, AGAIN_S)
    assert named.is_news(FullQuota(b"b", 10, 9, 10), AGAIN_S), "of another nothing was said"
    assert named.is_news(full, 1.0 + AGAIN_S)
    for n in range(3 * MOST_KNOWN):
        assert named.is_news(FullQuota(b"%d" % n, 10, 9, 10), 100.0)
        assert len(named._at_s) <= MOST_KNOWN
