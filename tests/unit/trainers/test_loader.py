"""How the loader starts its processes, by a stand-in for torch's loader."""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest

from cachefs.core.errors import BadConfig
from cachefs.trainers import loader
from cachefs.trainers.loader import DataLoader
from cachefs.trainers.manifest import Manifest
from cachefs.trainers.sampler import OrderSampler


class ForkingLoader:
    """Forks a process at the start of an iteration, as torch's does. Its first item is the number
    of objects that the garbage collection of that process leaves out."""

    fails = False

    def __init__(self, dataset: Any, *, batch_sampler: Any, num_workers: int) -> None:
        self._batches = batch_sampler

    def __iter__(self) -> Iterator[Any]:
        if self.fails:
            raise OSError("no process can be started")
        return iter([frozen_in_child(), *self._batches])


def frozen_in_child() -> int:
    ours, childs = os.pipe()
    child = os.fork()
    if not child:
        os.write(childs, gc.get_freeze_count().to_bytes(8, "little"))
        os._exit(0)
    os.waitpid(child, 0)
    found = int.from_bytes(os.read(ours, 8), "little")
    os.close(ours)
    os.close(childs)
    return found


@pytest.fixture(autouse=True)
def nothing_is_frozen() -> Iterator[None]:
    """The process of the tests may have frozen what it had at its start."""
    was_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    yield
    if was_frozen:
        gc.freeze()


@pytest.fixture
def make(manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(loader, "torch_loader", lambda: ForkingLoader)
    sampler = OrderSampler(manifest, seed=1)
    data = [0] * len(manifest)
    return lambda workers: DataLoader(data, sampler=sampler, batch_size=7, num_workers=workers)


def test_loader_processes_do_not_copy_what_they_share_to_collect_garbage(make: Any) -> None:
    objects = len(gc.get_objects())
    batches = iter(make(2)._begun())
    assert next(batches) > objects // 2
    assert not gc.get_freeze_count(), "in this process everything is collected as before"
    assert sum(map(len, batches)) == 25


def test_without_processes_nothing_is_left_out(make: Any) -> None:
    assert next(make(0)._begun()) == 0


def test_a_start_that_fails_leaves_nothing_out(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ForkingLoader, "fails", True)
    with pytest.raises(OSError, match="no process"):
        make(2)._begun()
    assert not gc.get_freeze_count()


def test_what_the_program_has_left_out_stays_so(make: Any) -> None:
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        newer = [[number] for number in range(1000)]  # a second freeze would have them, too
        make(2)._begun()
        # Reference counts alone free what is frozen.
        assert before - len(newer) < gc.get_freeze_count() <= before
    finally:
        gc.unfreeze()


def test_a_data_set_without_the_files_of_the_manifest_is_refused(manifest: Manifest) -> None:
    sampler = OrderSampler(manifest)
    for items in (0, len(manifest) - 1):
        with pytest.raises(BadConfig, match=f"has {items} items, .* {len(manifest)} files"):
            DataLoader([1] * items, sampler=sampler)
    with pytest.raises(BadConfig, match="a batch has one sample or more"):
        DataLoader([1] * len(manifest), sampler=sampler, batch_size=0)


def test_options_that_decide_the_order_are_refused(manifest: Manifest) -> None:
    sampler = OrderSampler(manifest, seed=1)
    with pytest.raises(BadConfig, match="shuffle: the sampler decides"):
        DataLoader([], sampler=sampler, shuffle=True)


# ---- which batches the loop gets -----------------------------------------------------------------


class LazyLoader:
    """Draws a batch when the loop wants it, as torch's without loader processes."""

    def __init__(self, dataset: Any, *, batch_sampler: Any, num_workers: int) -> None:
        self._batches = batch_sampler

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


class AheadLoader(LazyLoader):
    """Draws all batches before the loop gets the first one, as torch's loader processes may."""

    def __iter__(self) -> Iterator[Any]:
        return iter([*self._batches])


@pytest.fixture(params=[LazyLoader, AheadLoader])
def train(request: Any, manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(loader, "torch_loader", lambda: request.param)
    data = [0] * len(manifest)

    def make(**options: Any) -> DataLoader:
        return DataLoader(data, sampler=OrderSampler(manifest, seed=1), **options)

    return make


def two_epochs(manifest: Manifest, size: int) -> list[list[list[int]]]:
    """The batches of this size, by the order alone."""
    sampler = OrderSampler(manifest, seed=1)
    drawn = [[*sampler] for _ in range(2)]
    return [[one[n : n + size] for n in range(0, len(one), size)] for one in drawn]


@pytest.mark.parametrize("size", [5, 7])
def test_an_iteration_that_is_left_early_is_continued(
    train: Any, manifest: Manifest, size: int
) -> None:
    """Also where all batches were drawn ahead. One that got every batch is not continued."""
    first, second = two_epochs(manifest, size)
    for taken in range(len(first) + 1):
        made = train(batch_size=size)
        found = [*itertools.islice(made, taken)]
        assert made.state_dict()["position"] == min(25, taken * size)
        found += [*made] if taken < len(first) else []
        assert found == first
        assert [*made] == second


def test_a_state_of_the_end_has_no_batch_left(train: Any, manifest: Manifest) -> None:
    """Without the last batch, which is dropped, too. The next iteration is of the next epoch."""
    _, second = two_epochs(manifest, 7)
    for drop_last in (False, True):
        ended, resumed = (train(batch_size=7, drop_last=drop_last) for _ in range(2))
        assert len([*ended]) == len(ended)
        resumed.load_state_dict(ended.state_dict())
        assert [*resumed] == []
        assert [*resumed] == second[: len(resumed)]
