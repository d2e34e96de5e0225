"""The rule for the keys of an object store that a file system can show, as pure functions.

A key below the source's root is shown if each of its segments is: not empty, not `.` or `..`,
without NUL, at most 255 bytes. If both `a` and `a/b` exist, the directory `a` is shown and the
object `a` is hidden. A key that ends in `/` (a marker, as consoles and Hadoop write them) makes its
directory exist and has no other entry. A hidden key is counted and never an error. The directories
above its first bad segment exist, since a listing with a delimiter shows them.
"""

from __future__ import annotations

import re
from typing import Final, TypeVar

from cachefs.core.model import MAX_NAME_BYTES

T = TypeVar("T")
_HIDDEN_SEGMENT: Final = re.compile(rb"(?:\A|/)\.{0,2}(?:/|\Z)|\0|[^/]{%d}" % (MAX_NAME_BYTES + 1))


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
    return not path or _HIDDEN_SEGMENT.search(path) is None


def directories_win(files: dict[bytes, T], directories: set[bytes]) -> int:
    """Drops each file that a directory of the same name hides; returns the number dropped."""
    clashes = files.keys() & directories
    for name in clashes:
        del files[name]
    return len(clashes)
