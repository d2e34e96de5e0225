"""Files of the library beside those of the builtin `open`."""

from __future__ import annotations

import errno
import io
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from cachefs.core.model import Inode, Kind, NamespaceId
from cachefs.core.owned_fd import own
from cachefs.library import api
from cachefs.library.cache_file import CacheFile
from cachefs.library.open_file import Doubts, OpenFile

DATA = b"a\nb"


class NoSession:
    """A session of which a complete file needs nothing."""

    generation = epoch = 0


@pytest.fixture
def native(tmp_path: Path) -> Path:
    path = tmp_path / "short"
    path.write_bytes(DATA)
    return path


def open_file(size: int) -> OpenFile:
    session: Any = NoSession()
    inode = Inode(5, Kind.FILE, size)
    return OpenFile(session, NamespaceId(b"n" * 16), inode, Doubts(), lambda _: None)


@pytest.fixture
def opened(native: Path, monkeypatch: pytest.MonkeyPatch) -> CacheFile:
    """A complete file, which `cachefs.open` returns."""
    file = open_file(len(DATA))
    file.use_published(own(os.open(native, os.O_RDONLY)), 0)
    made = CacheFile(file, str(native), b"")
    monkeypatch.setattr(api, "open_file", lambda path, settings: made)
    return made


@pytest.mark.parametrize("buffering", [-1, 0])
def test_a_seek_before_the_start_fails_as_that_of_the_builtin(
    buffering: int, native: Path, opened: CacheFile
) -> None:
    for opens in (open, api.open):
        with opens(native, "rb", buffering) as file:  # type: ignore[operator]
            assert not zipfile.is_zipfile(file)
            with pytest.raises(OSError) as caught:
                file.seek(-9, os.SEEK_END)
            assert caught.value.errno == errno.EINVAL
            file.seek(-2, os.SEEK_END)
            assert file.read() == DATA[-2:]


@pytest.mark.parametrize("mode", ["r", "rt", "tr", "rb", "br"])
def test_the_modes_for_reading(mode: str, native: Path, opened: CacheFile) -> None:
    with open(native, mode) as builtin, api.open(native, mode) as file:
        assert (file.mode, file.read()) == (builtin.mode, builtin.read())
        assert type(file) is type(builtin)


@pytest.mark.parametrize("mode", ["w", "a", "x", "r+", "rb+", "rw", "b", "", "rbt"])
def test_other_modes_are_refused(mode: str, native: Path) -> None:
    with pytest.raises(ValueError, match="read-only"):
        api.open(native, mode)


def test_the_file_without_a_buffer(native: Path, opened: CacheFile) -> None:
    with api.open(native, "rb", 0) as file:
        assert isinstance(file, io.RawIOBase)


def test_an_empty_file_has_a_descriptor() -> None:
    """Programs map or ask for the size of what is cached completely."""
    with CacheFile(open_file(0), "/mnt/x", b"empty") as file:
        assert file.complete
        fd = file.fileno()
        assert (os.fstat(fd).st_size, file.fileno(), file.read()) == (0, fd, b"")
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    file = CacheFile(open_file(5), "/mnt/x", b"partial")
    with pytest.raises(io.UnsupportedOperation, match="not cached completely"), file:
        file.fileno()
