"""The rule for the keys of an object store that a file system can show, as pure functions.

A key below the source's root is shown if each of its segments is: not empty, not `.` or `..`,
without NUL, at most 255 bytes. If both `a` and `a/b` exist, the directory `a` is shown and the
object `a` is hidden. A key that ends in `/` (a marker, as consoles and Hadoop write them) makes its
directory exist and has no other entry. A hidden key is counted and never an error. The directories
above its first bad segment exist, since a listing with a delimiter shows them.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from cachefs.core.model import MAX_NAME_BYTES

T = TypeVar("T")


class Placed(NamedTuple):
    """The place of a key in the tree. `path` has no trailing '/'; b"" is the listed directory."""

    path: bytes
    is_directory: bool
    hidden: bool


def visible(name: bytes) -> bool:
    """Returns whether a directory can have an entry of this name."""
    return (
        0 < len(name) <= MAX_NAME_BYTES
        and name != b"."
        and name != b".."
        and b"/" not in name
        and b"\0" not in name
    )


def visible_path(path: bytes) -> bool:
    """Returns whether this path below the root can exist. The root, b"", can."""
    return not path or all(visible(segment) for segment in path.split(b"/"))


def place(key: bytes) -> Placed:
    """Returns the place of a key below the listed directory: a file, a directory (a marker), or for
    a hidden key the deepest directory that it makes exist."""
    if _plain(key):
        return Placed(key, False, False)
    segments = key.split(b"/")
    for depth, segment in enumerate(segments):
        if not visible(segment):
            marker = not segment and depth == len(segments) - 1
            return Placed(b"/".join(segments[:depth]), True, not marker)
    return Placed(key, False, False)


def _plain(key: bytes) -> bool:
    """Returns True for a key that is visible by a quick test: short, no segment that is empty or
    starts with a dot, no NUL. Nearly every key is."""
    return (
        0 < len(key) <= MAX_NAME_BYTES
        and b"\0" not in key
        and b"//" not in key
        and b"/." not in key
        and key[0] not in b"./"
        and key[-1] != 0x2F
    )


def directories_win(files: dict[bytes, T], directories: set[bytes]) -> int:
    """Drops each file that a directory of the same name hides; returns the number dropped."""
    clashes = files.keys() & directories
    for name in clashes:
        del files[name]
    return len(clashes)


def parents(path: bytes) -> list[bytes]:
    """Returns every directory above a path, nearest first, without the root."""
    found = []
    end = path.rfind(b"/")
    while end > 0:
        found.append(path[:end])
        end = path.rfind(b"/", 0, end)
    return found
