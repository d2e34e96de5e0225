"""Views of a node with several tiers: a frozen set is moved into one of them, the fastest that
takes all of it. What fits into none is not covered, and the command says so."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cachefs.core.errors import InUse
from cachefs.core.model import ROOT_INO, Kind
from cachefs.core.policies import Policy
from cachefs.core.tiers import TierSpec
from master.namespace import Master
from tests.integration.test_views import run
from tests.integration.views_rig import INTERVAL_S, MIB, UFS, FakeKernel, KeptOrigin, Node
from tests.unit.worker.rig import until
from tests.unit.worker_tiers.rig import come_back, leave
from worker.cache.cache import Cache
from worker.cache.tier import Tier
from worker.tier.config import WorkerConfig
from worker.views import automatic, choice, views
from worker.views.views import Views


@contextlib.asynccontextmanager
async def tiers_node(
    directory: Path, origin: KeptOrigin, *limits_mib: int
) -> AsyncIterator[tuple[Node, list[Tier]]]:
    specs = [
        TierSpec("ssd", str(directory / f"tier{number}"), limit * MIB, 1.0, 1.0)
        for number, limit in enumerate(limits_mib)
    ]
    master = Master.open(directory / "meta", UFS, origin, INTERVAL_S)
    config = WorkerConfig(specs[0].path, specs[0].limit_bytes, admission="always")
    cache = await Cache.start(config, specs, lambda ns: master, lambda ns, key: origin)
    kernel = FakeKernel()
    one = Node(master, cache, Views(cache.views, lambda ns: master, kernel), origin, kernel)
    tiers = cache.views.tiers()
    try:
        for tier in tiers:
            await until(lambda tier=tier: tier.order_known)  # type: ignore[misc]
        await master.getattr(ROOT_INO)
        yield one, tiers
    finally:
        await one.views.close()
        for mount in one.mounts:
            mount.close()
        await cache.close()
        await master.close()


def origin_of(count: int) -> KeptOrigin:
    origin = KeptOrigin()
    for number in range(count):
        origin.put(b"train/f%d" % number, bytes([number]) * MIB)
    origin.put(b"other/f", b"other")
    return origin


async def read(one: Node, path: bytes) -> None:
    async for batch in one.master.walk(ROOT_INO):
        for name, inode in batch:
            if name.startswith(path) and inode.kind is Kind.FILE:
                grant = await one.cache.open(one.namespace, inode.ino)
                if grant.fd is not None:
                    os.close(grant.fd)
                one.cache.release(grant.handle)


def shown_in(tiers: list[Tier], path: Path) -> list[int]:
    """The number of files in the trees of each tier."""
    return [
        sum(len(names) for _, _, names in os.walk(path / f"tier{number}" / "views"))
        for number in range(len(tiers))
    ]


@pytest.mark.parametrize(
    ("limits", "shown"), [((64, 128), [16, 0]), ((16, 128), [0, 16]), ((16, 16, 128), [0, 0, 16])]
)
def test_the_set_is_moved_into_the_fastest_tier_that_takes_it(
    tmp_path: Path, limits: tuple[int, ...], shown: list[int]
) -> None:
    async def script() -> None:
        origin = origin_of(16)
        async with tiers_node(tmp_path, origin, *limits) as (one, tiers):
            mount = await one.mount()
            await read(one, b"train")  # it is in several tiers, where the first is small
            status = await one.freeze(b"train")
            assert (status.state, status.files) == ("covered", 16), status
            assert mount.trees() == {b"train": await one.expected(b"train")}
            assert shown_in(tiers, tmp_path) == shown
            origin.put(b"train/f3", b"changed")
            await one.sync(b"train")
            assert not mount.covers
            await one.covered(b"train")
            assert mount.trees() == {b"train": await one.expected(b"train")}
            for tier in tiers:
                tier.contents.ledger.check_invariants()

    run(script())


def test_what_fits_into_no_tier_is_refused_with_figures(tmp_path: Path) -> None:
    async def script() -> None:
        async with tiers_node(tmp_path, origin_of(40), 24, 32) as (one, _):
            mount = await one.mount()
            with pytest.raises(InUse) as refused:
                await one.freeze(b"train")
            assert "40 files of 40 MiB fit into no tier" in refused.value.one_line()
            assert not mount.covers
            assert one.views.table(one.namespace).views == []
            assert not (await one.master.policies_at(b"train")).policy.pin

    run(script())


def test_a_policy_covers_only_what_one_tier_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "VIEW_LEAST_FILES", 10)
    monkeypatch.setattr(automatic, "QUIET_S", 0.0)
    monkeypatch.setattr(automatic, "SURVEY_SHARE", 0)

    async def script() -> None:
        async with tiers_node(tmp_path, origin_of(16), 64, 128) as (one, tiers):
            mount = await one.mount()
            await one.master.set_policy(b"", Policy(view="never"), ())
            await one.master.set_policy(b"train", Policy(view="auto"), ())
            await read(one, b"train")
            await one.views.automatic.step()
            await until(lambda: bool(mount.covers))
            assert mount.trees() == {b"train": await one.expected(b"train")}
            assert shown_in(tiers, tmp_path) == [16, 0]

    run(script())


def test_the_views_of_a_tier_that_was_replaced_unread_are_not_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "RETRY_S", 0.01)

    async def script() -> None:
        async with tiers_node(tmp_path, origin_of(1), 64, 64) as (one, tiers):
            leave(tiers[1])
            found = Views(one.cache.views, lambda ns: one.master, one.kernel)
            reading = found._adopted[tiers[1].number]
            await until(lambda: found._adopted[tiers[0].number].done())
            assert not reading.done()
            one.cache._tiers.running = tiers[:1]
            await until(reading.done)
            assert not found._unread
            one.cache._tiers.running = tiers
            await found.close()

    run(script())


def test_covers_of_a_tier_are_known_while_another_one_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(views, "ADOPT_WAIT_S", 1000.0)  # no mount waits for that one

    async def script() -> None:
        async with tiers_node(tmp_path, origin_of(4), 64, 64) as (one, tiers):
            mount = await one.mount()
            assert (await one.freeze(b"train")).state == "covered"
            await one.views.close()
            leave(tiers[1])
            found = one.views = mount.views = Views(
                one.cache.views, lambda ns: one.master, one.kernel
            )
            for cover in mount.covers:
                found.reported(mount, cover, covered=True, reason="")
            await found.attached(one.namespace)
            found.joined(mount)
            await one.covered(b"train")
            assert mount.trees() == {b"train": await one.expected(b"train")}
            await found.uncover_path(one.namespace, b"train", "test")
            assert not mount.covers
            assert "has not removed its cover" not in caplog.text
            come_back(tiers[1])
            await found.close()

    run(script())
