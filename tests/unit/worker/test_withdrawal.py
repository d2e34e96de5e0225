"""What is withdrawn after a failed sync stays withdrawn, whatever was under way at that time."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.services.loading import fetch
from tests.unit.worker.rig import MIB, NAMESPACE, Rig, only, open_reader, run, until
from worker.cache import tier as tier_module
from worker.store import filesystem, removal
from worker.store.directory import TierDirectory
from worker.store.lookup import lookup_content
from worker.store.removal import evict
from worker.store.writer import Writer

SMALL = 110 << 10


def lose(tier: TierDirectory) -> None:
    """A sync fails, and what it was for is withdrawn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filesystem, "syncfs", _fails)
        with pytest.raises(OSError, match="Input/output"):
            tier.sync(tier.header.epoch)
    tier.distrust()


def _fails(*_: Any) -> None:
    raise OSError(errno.EIO, "Input/output error")


class FailingWriter:
    """Commits nothing; `first` is called before it says so."""

    def __init__(self, first: Callable[[], None]) -> None:
        self._first = first

    def write(self, changes: Sequence[Any]) -> None:
        self._first()
        _fails()


@pytest.mark.parametrize("how", ["busy", "not committed", "looked up"])
def test_what_was_withdrawn_is_not_published_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """[S-lost-writes]"""

    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB)
        rig.put(1, SMALL)
        async with rig.worker() as worker:
            await fetch(worker, NAMESPACE, 1)
            one, name = only(worker), rig.name(1)
            tier, writer = one.disk.directory, one.disk.writer
            await until(lambda: not removal.is_busy(tier, name))

            def is_busy(*_: Any) -> bool:
                lose(tier)
                return True

            if how == "busy":
                monkeypatch.setattr(removal, "is_busy", is_busy)
                assert evict(tier, writer, [name], MIB, lambda: True).busy == [name]
            elif how == "not committed":
                failing: Any = FailingWriter(lambda: lose(tier))
                with pytest.raises(OSError, match="Input/output"):
                    evict(tier, failing, [name], MIB, lambda: True)
            else:
                real = tier.publish
                late = lambda name: (lose(tier), real(name))  # noqa: E731
                monkeypatch.setattr(tier, "publish", late)
                origin = rig.space.origins[1]
                looked = lookup_content(tier, writer, origin, origin.content.key, one.disk.epoch)
                assert not looked.published
                looked.close()
            assert rig.published() == set()

    run(script())


def test_an_eviction_that_is_not_committed_publishes_again_what_is_trusted(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB)
        rig.put(1, SMALL)
        async with rig.worker() as worker:
            await fetch(worker, NAMESPACE, 1)
            tier = only(worker).disk.directory
            await until(lambda: not removal.is_busy(tier, rig.name(1)))
            failing: Any = FailingWriter(lambda: None)
            with pytest.raises(OSError, match="Input/output"):
                evict(tier, failing, [rig.name(1)], MIB, lambda: True)
            assert rig.published() == {rig.name(1)}

    run(script())


def test_an_eviction_that_waited_does_not_begin_in_a_tier_out_of_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It stays out of service, and its threads need longer on a busy machine.
    monkeypatch.setattr(tier_module, "HANGING_WAIT_S", tier_module.CLOSE_WAIT_S)

    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB)
        rig.put(1, SMALL)
        async with rig.worker() as worker:
            await fetch(worker, NAMESPACE, 1)
            space, key = only(worker)._space, rig.content(1).key
            async with space._one_at_a_time:
                going = asyncio.create_task(space.let_go([key]))
                await asyncio.sleep(0)
                only(worker)._watch.withdraw()
            await going
            assert not only(worker)._catalog.is_live(key)
            assert rig.published() == {rig.name(1)}
            assert only(worker).disk.directory.index.get(key) is not None

    run(script())


def test_a_file_that_was_dropped_while_it_was_open_is_not_read_from_the_tier_that_lost_bytes(
    tmp_path: Path,
) -> None:
    """[S-lost-writes] Its reader has no descriptor of the file."""

    async def script() -> None:
        rig = Rig(tmp_path, 200 * MIB)
        rig.put(1, 40 * MIB)
        async with rig.worker() as worker:
            reader = await open_reader(worker, 1)
            assert await reader.at(0, MIB) == rig.data[1][:MIB]
            entry = only(worker)._catalog.live(rig.content(1).key)
            assert entry is not None
            await worker.free([rig.content(1)])
            handle = worker._handles[reader.grant.handle][1]
            handle.has_file = False
            os.pwrite(entry.fd, bytes(MIB), 0)  # the disk has zeros there
            only(worker)._watch.withdraw()
            await only(worker)._catalog.forsake()
            only(worker)._watch.restore()
            await until(lambda: only(worker).disk.health.in_service)
            assert await reader.at(0, MIB) == rig.data[1][:MIB]
            reader.close()

    run(script())


def test_the_end_of_a_withdrawal_that_is_cancelled_leaves_fences_alone(tmp_path: Path) -> None:
    async def script() -> None:
        async with Rig(tmp_path, 100 * MIB).worker() as worker:
            catalog = only(worker)._catalog
            with catalog.removing([b"k" * 36]):
                forsaking = asyncio.create_task(catalog.forsake())
                await asyncio.sleep(0)
                forsaking.cancel()
                await asyncio.wait([forsaking])
            assert forsaking.cancelled()

    run(script())


def test_files_that_cannot_be_dropped_are_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB)
        rig.put(1, SMALL)
        async with rig.worker() as worker:
            ledger = only(worker).contents.ledger
            await fetch(worker, NAMESPACE, 1)
            entry = await only(worker)._catalog.open(rig.space.origins[1], rig.content(1).key)
            cached_bytes = ledger.cached_bytes
            with monkeypatch.context() as patch:
                patch.setattr(Writer, "write", _fails)
                with pytest.raises(OSError, match="Input/output"):
                    await only(worker)._catalog.forsake()
            only(worker)._catalog.leave(entry)
            await until(lambda: not ledger.unlinked_bytes)
            assert ledger.cached_bytes == cached_bytes
            await worker.free([rig.content(1)])
            assert (ledger.cached_bytes, ledger.unlinked_bytes) == (0, 0)
            ledger.check_invariants()

    run(script())
