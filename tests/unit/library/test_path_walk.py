"""The walk along a path against a tree of dictionaries."""

from __future__ import annotations

import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefs.core.errors import (
    BadConfig,
    CacheFSError,
    NameTooLong,
    NotADirectory,
    NotFound,
    OriginError,
    Unsupported,
)
from cachefs.core.model import Inode, Kind
from cachefs.library.path_walk import MOST_LINKS, PathWalk, join

ROOT = Inode(1, Kind.DIRECTORY)
TREE: dict[tuple[int, bytes], Inode] = {
    (1, b"a"): Inode(2, Kind.DIRECTORY),
    (2, b"b"): Inode(3, Kind.DIRECTORY),
    (3, b"file"): Inode(4, Kind.FILE, 7),
    (1, b"file"): Inode(5, Kind.FILE, 8),
    (2, b"up"): Inode(6, Kind.SYMLINK, target=b"../file"),
    (3, b"down"): Inode(7, Kind.SYMLINK, target=b"./file"),
    (1, b"dir"): Inode(8, Kind.SYMLINK, target=b"a//b/"),
    (1, b"round"): Inode(9, Kind.SYMLINK, target=b"round"),
    (1, b"out"): Inode(10, Kind.SYMLINK, target=b"../out"),
    (1, b"absolute"): Inode(11, Kind.SYMLINK, target=b"/etc/passwd"),
}


def walked(path: bytes) -> PathWalk:
    walk = PathWalk(ROOT, path)
    for _ in range(3 * MOST_LINKS):
        question = walk.question
        if question is None:
            return walk
        walk.answer(TREE.get((question.parent, question.name)))
    raise AssertionError("the walk does not end")


@pytest.mark.parametrize(
    ("path", "ino"),
    [
        (b"", 1), (b"/", 1), (b"a", 2), (b"a/", 2), (b"a/b/file", 4), (b"//a/.//b/file", 4),
        (b"a/../file", 5), (b"a/up", 5), (b"a/b/down", 4), (b"dir/file", 4), (b"dir/..", 2),
        (b"dir/../up", 5),
    ],
)  # fmt: skip
def test_what_a_path_leads_to(path: bytes, ino: int) -> None:
    walk = walked(path)
    assert (walk.error, walk.inode.ino) == (None, ino)


@pytest.mark.parametrize(
    ("path", "error"),
    [
        (b"no", NotFound), (b"a/no/b", NotFound), (b"file/x", NotADirectory),
        (b"file/..", NotADirectory), (b"..", Unsupported), (b"a/../../file", Unsupported),
        (b"out", Unsupported), (b"absolute", Unsupported), (b"round", OriginError),
        (b"x" * 256, NameTooLong),
    ],
)  # fmt: skip
def test_why_a_path_leads_nowhere(path: bytes, error: type[CacheFSError]) -> None:
    assert type(walked(path).error) is error


def test_a_path_with_a_nul_byte() -> None:
    with pytest.raises(BadConfig):
        PathWalk(ROOT, b"a\0b")


@given(st.lists(st.sampled_from([b"a", b"b", b"file", b"..", b".", b""]), max_size=8))
def test_dots_are_those_of_the_library(parts: list[bytes]) -> None:
    """A path without links that never leaves the root leads where its normal form does."""
    path = b"/".join(parts)
    walk = walked(path)
    if walk.error is None:
        normal = posixpath.normpath(b"/" + path).lstrip(b"/")
        assert walked(normal).inode == walk.inode


def test_joined_paths() -> None:
    assert join(b"", b"/a/", b"b//", b"") == b"a/b"
