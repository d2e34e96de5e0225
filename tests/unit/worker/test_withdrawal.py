"""What is withdrawn after a failed sync stays withdrawn, whatever was under way at that time."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.worker.rig import MIB, NAMESPACE, Rig, run, until
from worker.store import filesystem, removal
from worker.store.look import look
from worker.store.removal import evict
from worker.store.tier import Tier
from worker.store.writer import Writer

SMALL = 110 << 10


def lose(tier: Tier) -> None:
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
            await worker.fetch(NAMESPACE, 1)
            parts, name = worker.inside.parts, rig.name(1)
            tier, writer = parts.tier, parts.writer
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
                looked = look(tier, writer, origin, origin.content.key, parts.epoch)
                assert not looked.published
                looked.close()
            assert rig.published() == set()

    run(script())


def test_an_eviction_that_is_not_committed_publishes_again_what_is_trusted(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB)
        rig.put(1, SMALL)
        async with rig.worker() as worker:
            await worker.fetch(NAMESPACE, 1)
            tier = worker.inside.parts.tier
            await until(lambda: not removal.is_busy(tier, rig.name(1)))
            failing: Any = FailingWriter(lambda: None)
            with pytest.raises(OSError, match="Input/output"):
                evict(tier, failing, [rig.name(1)], MIB, lambda: True)
            assert rig.published() == {rig.name(1)}

    run(script())


def test_an_eviction_that_waited_does_not_begin_in_a_tier_out_of_service(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB)
        rig.put(1, SMALL)
        async with rig.worker() as worker:
            await worker.fetch(NAMESPACE, 1)
            space, key = worker._space, rig.content(1).key
            async with space._one_at_a_time:
                going = asyncio.create_task(space.let_go([key]))
                await asyncio.sleep(0)
                worker.inside.watch.withdraw()
            await going
            assert not worker.inside.catalog.is_live(key)
            assert rig.published() == {rig.name(1)}
            assert worker.inside.parts.tier.index.get(key) is not None

    run(script())
