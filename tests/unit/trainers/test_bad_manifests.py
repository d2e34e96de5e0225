"""Manifests of another version of the format, and damaged ones: built again, or a clear error."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from cachefs.core import manifest_format
from cachefs.core.errors import BadConfig, NotFound
from cachefs.trainers.manifest import Manifest

COUNT = 25


def tables(home: str) -> list[Path]:
    return sorted([*Path(home).rglob("*.inos"), *Path(home).rglob("*.names")])


def test_a_kept_manifest_of_another_format_is_built_again(
    files: Path, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as later:
        later.setattr(manifest_format, "_FORMAT", 99)
        expected = [*Manifest(files, home=home)]
        assert len(expected) == COUNT
    assert [*Manifest(files, home=home)] == expected


def test_a_process_with_another_version_says_so(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loader process that is spawned with another version than the trainer's."""
    sent = pickle.dumps(manifest)
    monkeypatch.setattr(manifest_format, "_FORMAT", 99)
    with pytest.raises(BadConfig, match="has format 1, this version reads format 99"):
        pickle.loads(sent)
    assert len([*manifest]) == COUNT  # the trainer's own is as before


def test_a_process_whose_manifest_was_removed_says_so(manifest: Manifest, home: str) -> None:
    sent = pickle.dumps(manifest)
    for path in tables(home):
        path.unlink()
    with pytest.raises(NotFound, match="the manifest was removed"):
        pickle.loads(sent)
    assert len([*manifest]) == COUNT
