from __future__ import annotations

from pathlib import Path

import pytest

from cachefs.trainers.manifest import Manifest


@pytest.fixture
def home(tmp_path: Path) -> str:
    return str(tmp_path / "home")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A data set of 3 classes and 25 files, the one with the number i has i bytes."""
    root = tmp_path / "data"
    for number in range(25):
        folder = root / ("cat", "dog", "fox")[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:03d}.jpg").write_bytes(bytes([number]) * number)
    return root


@pytest.fixture
def manifest(files: Path, home: str) -> Manifest:
    return Manifest(files, home=home)
