"""What only a directory can do to a writer: links in the way, files of writers that crashed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cachefs.core.errors import AlreadyExists, IsADirectory, NotFound
from connectors.file.connector import TEMPORARY
from connectors.file.writer import FileWriter
from connectors.writing import ABSENT, ANY, Upload

DATA = memoryview(b"data")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    (tmp_path / "outside").mkdir()
    return tmp_path / "root"


def listed(source: FileWriter) -> list[bytes]:
    return [entry.name for page in source.list_dir(b"") for entry in page.entries]


def test_a_link_is_not_followed(root: Path) -> None:
    source = FileWriter(str(root))
    os.symlink("../outside", root / "way")
    os.symlink("../outside/f", root / "link")
    with pytest.raises(NotFound):
        source.put(b"way/f", DATA, ANY)
    with pytest.raises(AlreadyExists):
        source.put(b"link", DATA, ABSENT)
    source.put(b"link", DATA, ANY)  # replaces the link itself
    assert not (root / "link").is_symlink()
    assert os.listdir(root.parent / "outside") == []


def test_a_directory_is_not_replaced(root: Path) -> None:
    (root / "d").mkdir()
    source = FileWriter(str(root))
    with pytest.raises(IsADirectory):
        source.put(b"d", DATA, ANY)
    with pytest.raises(AlreadyExists):
        source.put(b"d", DATA, ABSENT)
    assert os.listdir(root) == ["d"]


def test_a_failed_write_leaves_nothing(root: Path) -> None:
    source = FileWriter(str(root))
    source.put(b"f", DATA, ABSENT)
    with pytest.raises(AlreadyExists):
        source.put(b"f", DATA, ABSENT)
    assert os.listdir(root) == ["f"]


def test_files_of_crashed_writers_are_hidden(root: Path) -> None:
    source = FileWriter(str(root))
    token = source.begin(b"f", 4)
    assert listed(source) == []
    [left] = os.listdir(os.fsencode(root))
    assert left.startswith(TEMPORARY)
    for act in (lambda: source.stat(left), lambda: source.put(left, DATA, ANY)):
        with pytest.raises(NotFound):
            act()
    source.abort(token)
    assert os.listdir(root) == []


def test_a_writer_that_ended_between_two_names(root: Path) -> None:
    """It gave the file its name, and did not remove the temporary one."""
    source = FileWriter(str(root))
    token = source.begin(b"f", 4)
    receipt = source.put_part(token, 0, DATA)
    [left] = os.listdir(root)
    os.link(root / left, root / "f")
    version = source.finish(token, [receipt], ABSENT)
    assert version == source.stat(b"f").fingerprint
    assert os.listdir(root) == ["f"]


@pytest.mark.parametrize("name", ["f:1", "../outside/x:1", f"{TEMPORARY.decode()}/../../x:1"])
def test_a_forged_token_names_no_other_file(root: Path, name: str) -> None:
    source = FileWriter(str(root))
    source.put(b"f", DATA, ABSENT)
    with pytest.raises(ValueError, match="not a token"):
        source.put_part(Upload(b"f", 4, name).token(), 0, DATA)
