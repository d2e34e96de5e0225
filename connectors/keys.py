"""Which keys of an object store a file system can show: the one rule, as pure functions.

A key below the source's root is shown when each of its segments is: not empty, not `.` or `..`,
without NUL, at most 255 bytes. Of `a` beside `a/b` the directory is shown and the object hidden. A
key that ends in `/` (a marker, as consoles and Hadoop write them) makes its directory exist and is
no entry itself. What is not shown is counted and never an error; a hidden key still makes the
directories above its first bad segment exist, since listing with a delimiter shows them.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from cachefs.core.model import MAX_NAME_BYTES

T = TypeVar("T")


class Placed(NamedTuple):
    """Where a key appears in the tree. `path` has no trailing '/'; b"" is the listed directory."""

    path: bytes
    is_directory: bool
    hidden: bool


def visible(name: bytes) -> bool:
    """Can a directory have an entry of this name?"""
    return (
        0 < len(name) <= MAX_NAME_BYTES
        and name != b"."
        and name != b".."
        and b"/" not in name
        and b"\0" not in name
    )


def visible_path(path: bytes) -> bool:
    """Can this path below the root exist at all? The root, b"", can."""
    return not path or all(visible(segment) for segment in path.split(b"/"))


def place(key: bytes) -> Placed:
    """Where a key below the listed directory appears: a file, a directory (a marker), or, hidden,
    the deepest directory that it makes exist."""
    if _plain(key):
        return Placed(key, False, False)
    segments = key.split(b"/")
    for depth, segment in enumerate(segments):
        if not visible(segment):
            marker = not segment and depth == len(segments) - 1
            return Placed(b"/".join(segments[:depth]), True, not marker)
    return Placed(key, False, False)


def _plain(key: bytes) -> bool:
    """The quick way out for nearly every key: short, no dot segment, no NUL, no empty segment."""
    return (
        0 < len(key) <= MAX_NAME_BYTES
        and b"\0" not in key
        and b"//" not in key
        and b"/." not in key
        and key[0] not in b"./"
        and key[-1] != 0x2F
    )


def directories_win(files: dict[bytes, T], directories: set[bytes]) -> int:
    """Drops each file that a directory of the same name hides; returns how many there were."""
    clashes = files.keys() & directories
    for name in clashes:
        del files[name]
    return len(clashes)


def parents(path: bytes) -> list[bytes]:
    """Every directory above a path, nearest first, without the root."""
    found = []
    end = path.rfind(b"/")
    while end > 0:
        found.append(path[:end])
        end = path.rfind(b"/", 0, end)
    return found
