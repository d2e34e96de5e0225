"""A sync that fails: what was recorded since the last good one is withdrawn, and verified as the
disk has it, before anything of it is read again."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest

from cachefs.core.model import PAGE_BYTES
from tests.services.loading import fetch
from tests.unit.worker.rig import MIB, NAMESPACE, Rig, only, open_reader, read, run, until
from worker.cache.cache import Cache
from worker.store import filesystem
from worker.store.directory import TierDirectory
from worker.store.index import Index
from worker.tier.admission import Admission
from worker.tier.health import (
    ERROR_PAUSE_S,
    MOST_TRIAL_PAUSE_S,
    TRIAL_DUE,
    Act,
    Health,
    Watch,
)

SMALL = 110 << 10


@pytest.fixture
def fail_syncs(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """The next so many calls of syncfs fail."""
    left = [0]
    real = filesystem.syncfs

    def syncfs(fd: int) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.EIO, "Input/output error")
        real(fd)

    monkeypatch.setattr(filesystem, "syncfs", syncfs)

    def fail(count: int) -> None:
        left[0] = count

    return fail


def lose(rig: Rig, ino: int, offset: int, size: int = PAGE_BYTES) -> None:
    """The disk has zeros there."""
    name = rig.name(ino)
    fd = os.open(rig.tier / "files" / name[-2:] / name, os.O_RDWR)
    os.pwrite(fd, bytes(min(size, len(rig.data[ino]) - offset)), offset)
    os.close(fd)


async def back(worker: Cache) -> None:
    await until(lambda: only(worker).disk.health.in_service)


def test_what_a_failed_sync_lost_is_never_read(
    tmp_path: Path, fail_syncs: Callable[[int], None]
) -> None:
    """[S-lost-writes]"""

    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB)
        old, new, hurt = rig.put(1, SMALL), rig.put(2, 3 * MIB), rig.put(3, 3 * MIB + 7)
        async with rig.worker() as worker:
            await fetch(worker, NAMESPACE, old)
            await only(worker).housekeeping.sync()
            for ino in (new, hurt):
                await fetch(worker, NAMESPACE, ino)
            fail_syncs(1)
            await only(worker).housekeeping.sync()
            assert rig.published() == {rig.name(old)}, "the others are withdrawn"
            await back(worker)
            lose(rig, hurt, 2 * MIB)
            before = rig.origin.script.body_bytes
            for ino in (old, new, hurt):
                assert await read(worker, ino) == rig.data[ino]
            assert rig.origin.script.body_bytes == before + MIB, "the page that was lost"
            status = worker.status()
            assert (status["verified_files"], status["bad_pages"]) == (2, 1)
            assert status["errors"]["sync"] == 1

    run(script())


def test_a_later_sync_does_not_bless_what_was_lost(
    tmp_path: Path, fail_syncs: Callable[[int], None]
) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB)
        rig.put(1, SMALL)
        rig.put(2, SMALL)
        async with rig.worker() as worker:
            await fetch(worker, NAMESPACE, 1)
            fail_syncs(1)
            await only(worker).housekeeping.sync()
            await back(worker)
            only(worker).disk.health.tried(0.0, reached_disk=True)
            await fetch(worker, NAMESPACE, 2)
            await only(worker).housekeeping.sync()
            assert rig.published() == {rig.name(2)}
        lose(rig, 1, 0)
        async with rig.worker() as worker:
            assert rig.published() == {rig.name(2)}
            assert await read(worker, 1) == rig.data[1]
            assert worker.status()["bad_pages"] == 1
            assert await read(worker, 2) == rig.data[2]
            assert worker.status()["verified_files"] == 1

    run(script())


def test_an_open_file_of_which_bytes_were_lost_is_read_past_the_tier(
    tmp_path: Path, fail_syncs: Callable[[int], None]
) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 200 * MIB)
        rig.put(1, 40 * MIB)
        async with rig.worker() as worker:
            reader = await open_reader(worker, 1)
            assert await reader.at(0, MIB) == rig.data[1][:MIB]
            assert reader.segments == 0
            fail_syncs(1)
            await only(worker).housekeeping.sync()
            await back(worker)
            assert reader.grant.fd is not None
            assert await reader.at(0, MIB) == rig.data[1][:MIB]
            assert reader.segments == 1, "not from the file that may be damaged"
            reader.close()
            only(worker).contents.ledger.check_invariants()

    run(script())


def test_nothing_is_written_before_a_trial_reaches_the_disk(
    tmp_path: Path, fail_syncs: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB)
        rig.put(1, SMALL)
        rig.put(2, SMALL)
        async with rig.worker() as worker:
            await fetch(worker, NAMESPACE, 1)
            fail_syncs(1)
            await only(worker).housekeeping.sync()
            await back(worker)
            assert await read(worker, 2) == rig.data[2]
            assert not rig.published(), "it was read past the cache"
            tier = worker.status()["tiers"][0]
            assert (tier["state"], tier["cause"]) == ("degraded", TRIAL_DUE)
            health = only(worker).disk.health
            health._trial_at_s = 1e-9  # it is due
            monkeypatch.setattr(TierDirectory, "try_to_write", _fails)
            await only(worker).housekeeping.tick()
            assert not health.writable(1e12)
            health._trial_at_s = 1e-9
            monkeypatch.undo()
            await only(worker).housekeeping.tick()
            assert worker.status()["tiers"][0]["cause"] == ""
            await fetch(worker, NAMESPACE, 2)
            assert rig.published() == {rig.name(2)}

    run(script())


def test_a_loss_in_the_scratch_area_alone_is_noticed(
    tmp_path: Path, fail_syncs: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """[S-lost-writes] The cache takes nothing, so nothing is committed."""

    async def refuse(*_: Any) -> bool:
        return False

    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB)
        rig.put(1, 9 * MIB)
        async with rig.worker() as worker:
            monkeypatch.setattr(Admission, "reserve", refuse)
            monkeypatch.setattr(Admission, "reserve_nowait", lambda *_, **__: False)
            await only(worker).housekeeping.sync()
            assert await read(worker, 1) == rig.data[1]
            await until(lambda: not only(worker)._filler._pieces)
            fail_syncs(1)
            await only(worker).housekeeping.sync()
            assert worker.status()["errors"]["sync"] == 1
            await back(worker)
            await only(worker).housekeeping.sync()
            assert worker.status()["errors"]["sync"] == 1, "nothing new"

    run(script())


def _fails(_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("how", ["before it begins", "while it unpublishes"])
def test_a_start_in_the_middle_of_a_withdrawal_finds_nothing_published(
    tmp_path: Path, how: str, fail_syncs: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB)
        rig.put(1, SMALL)
        async with rig.worker() as worker:
            await fetch(worker, NAMESPACE, 1)
            tier = only(worker).disk.directory

            def killed(_: str) -> bool:
                raise KeyboardInterrupt

            monkeypatch.setattr(tier, "unpublish", killed)
            fail_syncs(1)
            with pytest.raises(OSError, match="Input/output"):
                tier.sync(tier.header.epoch)
            if how == "while it unpublishes":
                with pytest.raises(KeyboardInterrupt):
                    tier.distrust()
            assert rig.published() == {rig.name(1)}
        lose(rig, 1, 0)
        async with rig.worker() as worker:
            assert rig.published() == set()
            assert await read(worker, 1) == rig.data[1]
            assert worker.status()["bad_pages"] == 1

    run(script())


@pytest.mark.parametrize("what", ["commit", "sync"])
def test_an_index_of_which_bytes_were_lost_is_given_up(
    tmp_path: Path,
    what: str,
    fail_syncs: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB)
        for ino in (1, 2):
            rig.put(ino, SMALL)
        async with rig.worker() as worker:
            await fetch(worker, NAMESPACE, 1)
            if what == "commit":
                monkeypatch.setattr(Index, "write", _commit_fails)
                assert await read(worker, 2) == rig.data[2]
                await until(lambda: only(worker).disk.writer.failed_commits > 0)
                fail_syncs(1)
            else:
                env = only(worker).disk.directory.index._env
                only(worker).disk.directory.index._env = _Env(env)
            await only(worker).housekeeping.sync()
            await only(worker).housekeeping.sync()
            assert not only(worker).disk.health.in_service
            assert rig.published() == set()
            for ino in (1, 2):
                assert await read(worker, ino) == rig.data[ino]
            only(worker)._watch.look()
            assert not only(worker).disk.health.in_service, "until it is started again"
            assert "once the worker is started again" in worker.status()["tiers"][0]["cause"]
        monkeypatch.undo()
        async with rig.worker() as worker:
            assert worker.status()["tiers"][0]["files"] == 0
            assert await read(worker, 1) == rig.data[1]

    run(script())


def _commit_fails(*_: Any) -> None:
    raise lmdb.Error("mdb_txn_commit: Input/output error")


class _Env:
    """An environment that cannot be forced to the disk."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def sync(self, force: bool) -> None:
        raise lmdb.Error("mdb_env_sync: Input/output error")


def test_a_disk_that_answers_with_errors_is_not_called_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.tier.health.PROBE_PAUSE_S", 0.0)

    def refuses() -> bool:
        raise OSError(errno.EROFS, "Read-only file system")

    async def script() -> None:
        async with Rig(tmp_path, 100 * MIB).worker() as worker:
            tier = only(worker)
            monkeypatch.setattr(tier.disk.directory, "probe", refuses)
            tier._watch.suspect()

            def has_left() -> bool:
                tier._watch.look()
                return not tier.disk.health.in_service

            await until(has_left)
            assert worker.status()["tiers"][0]["cause"] == "the disk fails (Read-only file system)"

    run(script())


def test_a_commit_that_fails_on_a_full_disk_costs_no_file(tmp_path: Path) -> None:
    """The next sync, which comes soon, says that nothing was lost."""

    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB)
        rig.put(1, SMALL)
        async with rig.worker() as worker:
            await fetch(worker, NAMESPACE, 1)
            only(worker).disk.writer.failed_commits += 1
            await only(worker).housekeeping.tick()
            assert rig.published() == {rig.name(1)}
            assert only(worker).disk.health.in_service

    run(script())


def test_a_disk_without_any_room_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a commit nor the header can be written: what is cached stays, and the next sync that
    can write the header says that all of it reached the disk."""

    def no_room(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB)
        for ino in (1, 2):
            rig.put(ino, SMALL)
        async with rig.worker() as worker:
            one = only(worker)
            await fetch(worker, NAMESPACE, 1)
            epoch = one.disk.directory.header.epoch
            monkeypatch.setattr(Index, "write", no_room)
            monkeypatch.setattr(TierDirectory, "_write_header", no_room)
            assert await read(worker, 2) == rig.data[2]
            await until(lambda: one.disk.writer.failed_commits > 0)
            for _ in range(3):
                await only(worker).housekeeping.sync()
            assert rig.published() == {rig.name(1)}
            assert one.disk.health.in_service
            assert not one.disk.health.lost
            assert one.disk.directory.header.synced_epoch < epoch, "nothing is said to be synced"
            monkeypatch.undo()
            await only(worker).housekeeping.sync()
            assert one.disk.directory.header.synced_epoch == epoch
            assert rig.published() == {rig.name(1)}

    run(script())


def test_what_an_earlier_process_did_not_sync_is_synced_by_the_next(
    tmp_path: Path, fail_syncs: Callable[[int], None]
) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB)
        rig.put(1, SMALL)
        async with rig.worker() as worker:
            await fetch(worker, NAMESPACE, 1)
        fail_syncs(1)  # the kernel tells the first who asks
        async with rig.worker() as worker:
            assert rig.published() == {rig.name(1)}
            await only(worker).housekeeping.sync()
            assert rig.published() == set()

    run(script())


def test_trials_become_rare() -> None:
    health = Health()
    pauses, now = [], 0.0
    health.lost_writes(now)
    for _ in range(20):
        before = now
        while not health.trial_due(now):
            now += 1.0
        pauses.append(now - before)
        assert not health.writable(now)
        health.tried(now, reached_disk=False)
    assert pauses[:3] == [ERROR_PAUSE_S, 2 * ERROR_PAUSE_S, 4 * ERROR_PAUSE_S]
    assert pauses[-1] == MOST_TRIAL_PAUSE_S
    while not health.trial_due(now):
        now += 1.0
    health.tried(now, reached_disk=True)
    assert health.writable(now)
    health.synced()
    health.lost_writes(now)
    assert health.trial_due(now + ERROR_PAUSE_S)


def test_a_tier_that_is_held_back_returns_once_it_is_let_go() -> None:
    watch = Watch()
    assert watch.hold()
    assert not watch.hold()
    acts = [watch.look([], [], 1.0)]
    watch.probed(1.5, answered=True)
    acts += [watch.look([], [], 2.0 + n) for n in range(3)]
    assert Act.RETURN not in acts
    watch.let_go()
    watch.look([], [], 6.0)
    watch.probed(6.1, answered=True)
    assert watch.look([], [], 7.0) is Act.RETURN
