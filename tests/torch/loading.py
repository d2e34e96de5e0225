"""What the tests of loaders do with real torch; see `host.py`."""

from __future__ import annotations

import gc
import os
import re
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader

import cachefs.torch as ct
from cachefs.core.errors import BadConfig
from tests.torch.training import number_in

BATCH = 7


def loader_of(manifest: ct.Manifest, workers: int, **options: Any) -> ct.DataLoader:
    sampler = ct.OrderSampler(manifest, seed=7)
    options = {"batch_size": BATCH, "num_workers": workers, "collate_fn": list, **options}
    return ct.DataLoader(ct.Files(manifest, decode=number_in), sampler=sampler, **options)


def batches(loader: ct.DataLoader) -> list[list[int]]:
    return [[*batch] for batch in loader]


def the_state_counts_what_was_yielded(path: str, home: str, workers: int) -> None:
    manifest = ct.Manifest(path, home=home)
    loader = loader_of(manifest, workers)
    expected = batches(loader_of(manifest, 0))
    assert len(loader) == len(expected)
    turn = iter(loader)
    for step in range(4):
        assert next(turn) == expected[step]
        assert loader.state_dict()["position"] == BATCH * (step + 1)
    resumed = loader_of(manifest, workers)
    resumed.load_state_dict(loader.state_dict())
    del turn
    assert batches(resumed) == expected[4:]
    assert resumed.state_dict()["position"] == len(manifest)
    assert batches(resumed) == batches(loader_of_epoch(manifest, 1))  # the next epoch


def loader_of_epoch(manifest: ct.Manifest, epoch: int) -> ct.DataLoader:
    loader = loader_of(manifest, 0)
    loader.sampler.set_epoch(epoch)
    return loader


def loader_processes_may_be_spawned(path: str, home: str) -> None:
    manifest = ct.Manifest(path, home=home)
    loader = loader_of(manifest, 1, multiprocessing_context="spawn")
    assert batches(loader) == batches(loader_of_epoch(manifest, 0))


def loader_processes_may_stay(path: str, home: str) -> None:
    manifest = ct.Manifest(path, home=home)
    loader = loader_of(manifest, 2, persistent_workers=True, drop_last=True)
    for epoch in range(3):
        whole = [
            batch for batch in batches(loader_of_epoch(manifest, epoch)) if len(batch) == BATCH
        ]
        assert batches(loader) == whole


class FreezeCounts(torch.utils.data.Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return gc.get_freeze_count()


def loader_processes_share_what_garbage_collections_look_at(path: str, home: str) -> None:
    sampler = ct.OrderSampler(ct.Manifest(path, home=home), seed=7)
    for workers in (0, 2):
        loader = ct.DataLoader(FreezeCounts(), sampler=sampler, num_workers=workers)
        assert (int(next(iter(loader))) > 100_000) == (workers > 0)
        assert gc.get_freeze_count() == 0


def a_plain_loader_of_torch_reads_whole_batches(path: str, home: str) -> None:
    manifest = ct.Manifest(path, home=home)
    asked: list[int] = []

    class Counted(ct.Files):
        def __getitems__(self, indices: Any) -> list[Any]:
            asked.append(len(indices))
            return super().__getitems__(indices)

    data = Counted(manifest, decode=number_in, labels=True)
    sampler = ct.OrderSampler(manifest, seed=7)
    plain = TorchLoader(data, sampler=sampler, batch_size=BATCH)
    numbers, labels = zip(*plain, strict=True)
    expected = [number for batch in batches(loader_of(manifest, 0)) for number in batch]
    assert torch.cat(numbers).tolist() == expected
    assert torch.cat(labels).tolist() == [number % 3 for number in expected]
    assert asked == [len(batch) for batch in numbers]


def errors_name_the_file(path: str, home: str, gone: str) -> None:
    manifest = ct.Manifest(path, home=home)
    os.unlink(gone)
    for workers in (0, 2):
        with pytest.raises(FileNotFoundError, match=os.path.basename(gone)):
            batches(loader_of(manifest, workers))


def errors_of_decoding_name_the_file(path: str, home: str) -> None:
    """In the process of the loop, and in what torch prints of loader processes."""
    manifest = ct.Manifest(path, home=home)
    names = [os.fsdecode(name) for name in manifest]
    (bad,) = (name for name in names if number_in(Path(name).read_bytes()) == 3)

    def decode(data: bytes) -> int:
        if number_in(data) == 3:
            raise ZeroDivisionError("a broken image")
        return number_in(data)

    for workers in (0, 2):
        options: dict[str, Any] = {"num_workers": workers, "batch_size": BATCH}
        sampler = ct.OrderSampler(manifest, seed=7)
        with pytest.raises(ZeroDivisionError, match="a broken image") as caught:
            batches(ct.DataLoader(ct.Files(manifest, decode=decode), sampler=sampler, **options))
        shown = "".join(traceback.format_exception(caught.value))
        assert f"while decoding {bad!r}" in shown


def an_index_out_of_range_is_an_error_and_loses_nothing(path: str, home: str) -> None:
    """In the process of the loop and in loader processes; the next iteration is whole."""
    manifest = ct.Manifest(path, home=home)
    data = ct.Files(manifest, decode=number_in)
    expected = batches(loader_of(manifest, 0))
    for workers in (0, 2):
        for wrong in (len(manifest), -1):
            broken = TorchLoader(data, batch_sampler=[[0, 1], [2, wrong]], num_workers=workers)
            turn = iter(broken)
            assert len(next(turn)) == 2
            with pytest.raises(
                IndexError, match=f"file {wrong} of {path}, .* {len(manifest)} files"
            ):
                next(turn)
        assert batches(loader_of(manifest, workers)) == expected


def two_samplers_of_one_name_lose_nothing(path: str, home: str) -> None:
    """The second one is refused; the first one goes on, and its name is free after its end."""
    manifest = ct.Manifest(path, home=home)
    first = ct.OrderSampler(manifest, seed=7, name="train")
    turn = iter(first)
    found = [next(turn) for _ in range(10)]
    with pytest.raises(BadConfig, match=r"another sampler .* announces its order as .train"):
        ct.OrderSampler(manifest, seed=8, name="train")
    assert [*found, *turn] == [*ct.OrderSampler(manifest, seed=7)]
    del first, turn
    gc.collect()
    assert len(ct.OrderSampler(manifest, name="train")) == len(manifest)


def wrong_options_are_refused(path: str, home: str) -> None:
    manifest = ct.Manifest(path, home=home)
    for options in (
        {"shuffle": True},
        {"batch_sampler": []},
        {"in_order": False},
    ):
        with pytest.raises(BadConfig, match="the sampler decides the order"):
            loader_of(manifest, 0, **options)
    with pytest.raises(BadConfig, match="a batch has one sample or more"):
        loader_of(manifest, 0, batch_size=0)


def ranks(path: str, home: str, rank: int, rendezvous: str) -> None:
    """Three ranks that exchange their machines: those of one mount are all on one."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=3
    )
    manifest = ct.Manifest(path, home=home)
    sampler = ct.OrderSampler(manifest, seed=7, rank=rank, world_size=3, locality=True)
    data = ct.Files(manifest, decode=number_in)
    loader = ct.DataLoader(data, sampler=sampler, batch_size=5, collate_fn=list)
    mine = [number for batch in loader for number in batch]
    every: list[Any] = [None] * 3
    torch.distributed.all_gather_object(every, mine)
    assert {len(one) for one in every} == {-(-len(manifest) // 3)}
    assert {number for one in every for number in one} == set(range(len(manifest)))
    torch.distributed.destroy_process_group()


def the_snippets_of_the_page(path: str, home: str) -> None:
    """Runs docs/trainers/pytorch.md with the folder of the test. `home`: the state home."""
    os.environ["CACHEFS_HOME"] = home
    text = (Path(__file__).parents[2] / "docs" / "trainers" / "pytorch.md").read_text()
    snippets = re.findall(r"<!-- snippet -->\n```python\n(.*?)```", text, re.S)
    assert len(snippets) == 2
    names: dict[str, Any] = {}
    exec("\n".join(snippets).replace("/mnt/imagenet/train", path), names)
    assert names["rest"] == len(names["manifest"]) - 3 * 8


def the_snippet_of_the_readme(path: str, home: str) -> None:
    """Runs the lines for training with a data set that knows nothing of CacheFS."""
    os.environ["CACHEFS_HOME"] = home
    text = (Path(__file__).parents[2] / "README.md").read_text()
    (snippet,) = re.findall(r"<!-- snippet -->\n```python\n(.*?)```", text, re.S)
    files = sorted(Path(path).glob("*/*.txt"))
    names: dict[str, Any] = {"data": [number_in(file.read_bytes()) for file in files]}
    exec(snippet.replace("/mnt/data/images", path), names)
    assert sorted(n for batch in names["loader"] for n in batch.tolist()) == [*range(len(files))]
    assert names["loader"].state_dict()["position"] == len(files)
    program = (Path(__file__).parents[2] / "demo" / "trainer.py").read_text()
    for line in ("manifest = ct.Manifest(", "sampler = ct.OrderSampler(", "ct.DataLoader(data, "):
        assert line in snippet
        assert line in program
