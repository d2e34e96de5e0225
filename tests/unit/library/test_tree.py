"""A tree over a scripted source."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import pytest

from cachefs.core.errors import NotADirectory, NotFound, Stale, Unreachable
from cachefs.core.model import Inode, Kind
from cachefs.library.library import Located
from cachefs.library.names import ListedName
from cachefs.library.tree import Tree

FOLDER = Inode(2, Kind.DIRECTORY)
FILE = Inode(3, Kind.FILE, 5)


class ScriptedLibrary:
    """Leads to a source of these directories; an error is raised in place of its names."""

    version = 0

    def __init__(self, folders: dict[bytes, Any]) -> None:
        self._folders = folders

    def locate(self, url: str, settings: object) -> Located:
        source: Any = self
        return Located(source, b"")

    def list_all(self, paths: Sequence[bytes]) -> list[Any]:
        return [self._folders[path] for path in paths]


def tree_of(folders: dict[bytes, Any]) -> Tree:
    library: Any = ScriptedLibrary(folders)
    return Tree("/mnt/x", {}, lambda: library)


@pytest.mark.parametrize("error", [NotFound("gone"), NotADirectory("a file"), Stale("replaced")])
def test_a_walk_goes_on_past_a_directory_that_was_removed(error: Exception) -> None:
    """As that of the operating system. The directory of the walk itself must exist."""
    names = [ListedName(b"a", FOLDER), ListedName(b"b", FOLDER), ListedName(b"c", FILE)]
    tree = tree_of({b"": names, b"a": error, b"b": [ListedName(b"d", FILE)]})
    assert [one.path for one in tree.walk()] == [b"a", b"b", b"c", b"b/d"]
    for read in (lambda: [*tree.walk("a")], lambda: tree.list_dir("a")):
        with pytest.raises(OSError, match="/mnt/x/a"):
            read()


def test_a_walk_ends_where_a_directory_cannot_be_read() -> None:
    tree = tree_of({b"": [ListedName(b"a", FOLDER)], b"a": Unreachable("no answer")})
    with pytest.raises(OSError, match="/mnt/x/a") as caught:
        [*tree.walk()]
    assert caught.value.errno == errno.EIO
