"""Why a mount is not served, as its supervisor notes it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from cachefs.core.errors import NotFound, Unreachable
from cachefs.core.messages import failure_of
from cachefs.fuse import failure_notes

GONE = failure_of(NotFound("the directory was removed"))
AWAY = failure_of(Unreachable("the worker is away"))


def test_a_write_that_fails_keeps_the_former_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / failure_notes.DIRECTORY).mkdir()
    place = str(tmp_path / "mounts" / "one")
    failure_notes.write(place, GONE)
    write = Path.write_bytes

    def no_room(path: Path, data: bytes) -> int:
        write(path, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", no_room)
        failure_notes.write(place, AWAY)
    assert failure_notes.read(place) == GONE
    failure_notes.write(place, AWAY)
    assert failure_notes.read(place) == AWAY


def test_without_the_directory_nothing_is_noted(tmp_path: Path) -> None:
    place = str(tmp_path / "mounts" / "one")
    failure_notes.write(place, GONE)
    assert failure_notes.read(place) is None
