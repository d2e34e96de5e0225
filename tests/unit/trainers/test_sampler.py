"""Samplers: the ranks together read every sample once, in an order that depends on seed, epoch and
position only; any number of ranks resumes anywhere; wrong states and names are refused."""

from __future__ import annotations

import errno
import gc
import os
import random
from typing import Any

import pytest

from cachefs.core.errors import BadConfig
from cachefs.core.orders import Order
from cachefs.core.placement import Member
from cachefs.trainers.batch_shares import BatchShares, Locality
from cachefs.trainers.files import Files
from cachefs.trainers.manifest import Manifest
from cachefs.trainers.sampler import OrderSampler

SEED = 20261125


def samplers(manifest: Manifest, world_size: int, **options: Any) -> list[OrderSampler]:
    return [
        OrderSampler(manifest, seed=7, rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]


def together(ranks: list[OrderSampler], steps: int = 1 << 30) -> list[int]:
    """The samples that all ranks read, in turns of one sample, and reports them as consumed."""
    turns = [iter(rank) for rank in ranks]
    found = []
    for _ in range(min(steps, len(ranks[0]))):
        found += [next(turn) for turn in turns]
        for rank in ranks:
            rank.advance(1)
    return found


@pytest.mark.parametrize("shuffle", ["none", "full", "block", "window"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_the_ranks_read_the_order_of_the_epoch(
    manifest: Manifest, shuffle: Any, world_size: int
) -> None:
    width = 4 if shuffle in ("block", "window") else 0
    order = Order(25, 7, 0, shuffle, width)
    expected = [*order.indices(range(25))]
    found = together(samplers(manifest, world_size, shuffle=shuffle, width=width))
    assert found[:25] == expected
    assert found[25:] == expected[: len(found) - 25]  # equal counts: some are read again
    whole = together(samplers(manifest, world_size, shuffle=shuffle, width=width, drop_last=True))
    assert whole == expected[: 25 // world_size * world_size]


@pytest.mark.parametrize("seed", range(SEED, SEED + 25))
def test_any_number_of_ranks_resumes_anywhere(manifest: Manifest, seed: int) -> None:
    draw = random.Random(seed)
    expected, found, state = together(samplers(manifest, 1)), [], None
    while len(found) < 25:
        ranks = samplers(manifest, draw.randint(1, 4))
        for rank in ranks if state is not None else []:
            rank.load_state_dict(state)
        found += together(ranks, draw.randint(0, 4))
        states = [rank.state_dict() for rank in ranks]
        assert all(one == states[0] for one in states)
        state = states[0]
        assert state["position"] == min(25, len(found))
        del ranks
    assert found[:25] == expected


def test_epochs_follow_each_other_unless_one_is_named(manifest: Manifest) -> None:
    (sampler,) = samplers(manifest, 1)
    first, second = [*sampler], [*sampler]
    assert sampler.epoch == 1
    assert first != second
    assert sorted(first) == sorted(second) == [*range(25)]
    sampler.set_epoch(0)
    assert [*sampler] == first
    sampler.set_epoch(0)
    assert [*sampler] == first
    sampler.set_epoch(1)
    assert [*sampler] == second


def test_setting_the_epoch_of_a_loaded_state_keeps_its_position(manifest: Manifest) -> None:
    sampler, resumed = samplers(manifest, 1)[0], samplers(manifest, 1)[0]
    sampler.set_epoch(3)
    expected = [*sampler]
    sampler.set_epoch(3)
    together([sampler], 10)
    resumed.load_state_dict(sampler.state_dict())
    resumed.set_epoch(3)
    assert len(resumed) == 15
    assert [*resumed] == expected[10:]


def test_a_state_of_other_files_or_another_shuffle_is_refused_and_nothing_changes(
    manifest: Manifest, files: Any, home: str
) -> None:
    state = samplers(manifest, 1)[0].state_dict()
    (files / "cat" / "more").touch()
    (other,) = samplers(Manifest(files, home=home), 1)
    expected = [*other]
    other.set_epoch(0)
    with pytest.raises(BadConfig, match="a manifest of 25 files, and this one has 26"):
        other.load_state_dict(state)
    (files / "cat" / "more").rename(files / "cat" / "000.jpg")
    (same_count,) = samplers(Manifest(files, home=home), 1)
    with pytest.raises(BadConfig, match="25 files, and this one has 25"):
        same_count.load_state_dict({**state, "identity": 5})
    with pytest.raises(BadConfig, match="full shuffle with width 0, the sampler's is window"):
        samplers(manifest, 1, shuffle="window", width=3)[0].load_state_dict(state)
    for wrong in ({}, {**state, "position": "x"}, {**state, "more": 1}):
        with pytest.raises(BadConfig, match="not the state of a sampler"):
            other.load_state_dict(wrong)
    with pytest.raises(BadConfig, match="position 26"):
        samplers(manifest, 1)[0].load_state_dict({**state, "position": 26})
    assert [*other] == expected


def test_a_state_of_an_earlier_version_resumes(manifest: Manifest) -> None:
    """It names the manifest by an identity without the folder of each file."""
    first, second = samplers(manifest, 1)[0], samplers(manifest, 1)[0]
    state = first.state_dict()
    assert state["identity"] == manifest.identity
    second.load_state_dict({**state, "position": 5, "identity": manifest.former_identity})
    assert [*second] == [*first][5:]


def test_two_samplers_of_one_name_are_refused_while_both_live(manifest: Manifest) -> None:
    first = OrderSampler(manifest, name="train")
    with pytest.raises(BadConfig, match=r"another sampler .* announces its order as 'train'"):
        OrderSampler(manifest, name="train")
    assert len([*first]) == 25
    del first
    gc.collect()
    assert len(OrderSampler(manifest, name="train")) == 25


def test_wrong_shares_and_widths_are_refused(manifest: Manifest) -> None:
    for wrong in (
        {"rank": 2, "world_size": 2},
        {"rank": -1},
        {"shuffle": "block"},
        {"shuffle": "random"},
        {"shuffle": True},
        {"seed": -1},
        {"locality": Locality((Member("a", "", 1.0),), ("a", "a"))},
    ):
        with pytest.raises(BadConfig):
            OrderSampler(manifest, **wrong)


# ---- locality ------------------------------------------------------------------------------------

MEMBERS = tuple(Member(name, "", 1.0) for name in "abcd")


def placed(manifest: Manifest, world_size: int, batch_size: int) -> list[OrderSampler]:
    nodes = tuple("abcd"[rank % 4] for rank in range(world_size))
    options = {"locality": Locality(MEMBERS, nodes), "batch_size": batch_size}
    return samplers(manifest, world_size, **options)


@pytest.mark.parametrize(("world_size", "batch_size"), [(4, 2), (2, 3), (3, 1), (4, 7)])
def test_locality_keeps_the_set_of_every_global_batch(
    manifest: Manifest, world_size: int, batch_size: int
) -> None:
    plain = together(samplers(manifest, world_size))
    ranks = [[*rank] for rank in placed(manifest, world_size, batch_size)]
    assert len({len(rank) for rank in ranks}) == 1
    whole = world_size * batch_size
    for step in range(-(-len(plain) // whole)):
        batch = [s for rank in ranks for s in rank[step * batch_size : (step + 1) * batch_size]]
        assert sorted(batch) == sorted(plain[step * whole : (step + 1) * whole])


def test_locality_resumes_at_a_batch(manifest: Manifest) -> None:
    expected = [[*rank] for rank in placed(manifest, 4, 2)]
    ranks = placed(manifest, 4, 2)
    together(ranks, 4)
    resumed = placed(manifest, 4, 2)
    for new, old in zip(resumed, ranks, strict=True):
        new.load_state_dict(old.state_dict())
    assert [[*rank] for rank in resumed] == [rank[4:] for rank in expected]


def test_locality_without_a_batch_size_is_refused(manifest: Manifest) -> None:
    sampler = OrderSampler(manifest, locality=Locality(MEMBERS, ("a",)))
    with pytest.raises(BadConfig, match="needs the batch size"):
        next(iter(sampler))


def test_locality_true_without_a_process_group_is_refused(manifest: Manifest) -> None:
    with pytest.raises(BadConfig, match="process group of 2 ranks"):
        OrderSampler(manifest, world_size=2, locality=True)
    assert len([*OrderSampler(manifest, locality=True)]) == 25  # one rank needs no exchange


@pytest.mark.parametrize(
    ("nodes", "per_node", "least"), [(64, 1, 0.965), (4, 1, 0.97), (8, 8, 0.96)]
)
def test_most_samples_are_local(nodes: int, per_node: int, least: float) -> None:
    """Each node has `per_node` ranks with 256 samples a step."""
    draw = random.Random(SEED)
    members = tuple(Member(f"{node:032x}", "", 1.0) for node in range(nodes))
    ranks = tuple(members[rank // per_node].id for rank in range(nodes * per_node))
    shares = BatchShares(Locality(members, ranks))
    inos = draw.sample(range(1 << 40), 256 * len(ranks))
    found = shares.shares([*range(len(inos))], inos)
    assert {len(share) for share in found} == {256}
    assert sorted(s for share in found for s in share) == [*range(len(inos))]
    local = sum(
        shares._placement.owners(inos[sample], 0)[0].id == ranks[rank]
        for rank, share in enumerate(found)
        for sample in share
    )
    assert local / len(inos) >= least


# ---- files ---------------------------------------------------------------------------------------


def test_items_are_decoded_one_by_one_and_by_batch(manifest: Manifest) -> None:
    data = Files(manifest, decode=len, labels=True)
    sizes = [manifest.size(i) for i in range(25)]
    assert [data[i] for i in range(25)] == [(sizes[i], manifest.label(i)) for i in range(25)]
    assert data.__getitems__([3, 1, 3]) == [data[3], data[1], data[3]]
    assert len(data) == 25


def test_an_error_names_the_file(manifest: Manifest, files: Any) -> None:
    gone = files / "cat" / "000.jpg"
    gone.unlink()
    with pytest.raises(FileNotFoundError, match=r"cat/000\.jpg"):
        Files(manifest).__getitems__([1, 0])
    with pytest.raises(IndexError, match="file 25 of"):
        Files(manifest).__getitems__([1, 25])


def test_an_error_of_decoding_names_the_file(manifest: Manifest) -> None:
    def decode(_: bytes) -> None:
        raise ZeroDivisionError("a broken image")

    name = os.fsdecode(manifest.file(3))
    for read in (lambda data: data.__getitems__([3, 1]), lambda data: data[3]):
        with pytest.raises(ZeroDivisionError, match="a broken image") as caught:
            read(Files(manifest, decode=decode))
        assert caught.value.__notes__ == [f"while decoding {name!r} (file 3 of the manifest)"]


def test_a_read_error_names_the_file(manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> bytes:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(os, "read", fails)
    with pytest.raises(OSError, match="Stale") as caught:
        Files(manifest).__getitems__([3])
    assert (caught.value.errno, caught.value.filename) == (
        errno.ESTALE,
        os.fsdecode(manifest.file(3)),
    )


def test_a_file_of_another_size_is_read_to_its_end(manifest: Manifest, files: Any) -> None:
    for size in (0, 5, 3 << 20):
        (files / "cat" / "003.jpg").write_bytes(b"z" * size)
        index = [*manifest].index(bytes(files / "cat" / "003.jpg"))
        assert Files(manifest)[index] == b"z" * size
