"""Emulated accelerators: the search for the largest busy number, the files, the utilisation."""

from __future__ import annotations

import zipfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefs.trainers.accelerator_search import BUSY, AcceleratorSearch
from cachefs.trainers.accelerators import MODELS, LoaderFailed, make_files, utilisation

SMALL = msgspec.structs.replace(MODELS["cosmoflow"], sample_bytes=10_000, compute_s=0.02)
NPZ = msgspec.structs.replace(MODELS["unet3d"], sample_bytes=10_000, batch=2, compute_s=0.02)


@given(st.integers(1, 100), st.integers(0, 120))
def test_the_search_finds_the_largest_busy_number(most: int, busy: int) -> None:
    search, measured = AcceleratorSearch(most), 0
    while (count := search.next()) is not None:
        assert 1 <= count <= most
        assert search.is_open(count)
        search.measured(count, BUSY if count <= busy else BUSY - 0.01)
        measured += 1
    assert search.best == min(busy, most)
    assert measured <= 15
    assert not any(search.is_open(count) for count in range(1, most + 1))


def test_the_files_of_a_model(tmp_path: Path) -> None:
    (name,) = make_files(SMALL, tmp_path, 1)
    assert (tmp_path / name).stat().st_size == SMALL.sample_bytes
    (name,) = make_files(NPZ, tmp_path, 1)
    with zipfile.ZipFile(tmp_path / name) as archive:
        (member,) = archive.infolist()
        assert archive.testzip() is None
    assert NPZ.sample_bytes <= member.file_size < NPZ.sample_bytes + 200


@pytest.mark.parametrize("model", [SMALL, NPZ], ids=["files", "npz"])
def test_fast_reads_keep_accelerators_busy(model: object, tmp_path: Path) -> None:
    assert isinstance(model, type(SMALL))
    names = make_files(model, tmp_path, 6)
    assert 0.2 < utilisation(model, tmp_path, names, 2, 4) <= 1.0


def test_slow_reads_leave_accelerators_idle(tmp_path: Path) -> None:
    """A batch of 400 files takes longer than a computation of a microsecond."""
    model = msgspec.structs.replace(SMALL, batch=400, compute_s=1e-6)
    names = make_files(model, tmp_path, 4)
    assert utilisation(model, tmp_path, names, 1, 3) < 0.1


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoaderFailed, match="absent"):
        utilisation(SMALL, tmp_path, ["absent"], 2, 3)
