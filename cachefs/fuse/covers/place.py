"""Where the tree of a view belongs in a mount. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """`inside`: the directory to cover, below the root of the mount; `part`: the part of the tree
    to show there. One of the two is empty: the top of the tree is at, below or above the root."""

    inside: bytes
    part: bytes


def place_of(path: bytes, base: bytes) -> Place | None:
    """Returns the place of the tree of directory `path` in a mount of directory `base`, both below
    the root of the namespace; None if the mount shows nothing of it."""
    rest = _below(path, base)
    if rest is not None:
        return Place(rest, b"")
    part = _below(base, path)
    return None if part is None else Place(b"", part)


def _below(path: bytes, top: bytes) -> bytes | None:
    """Returns a path as seen from `top`, or None if it is elsewhere."""
    path, top = path.strip(b"/"), top.strip(b"/")
    if path == top or not top:
        return path if path != top else b""
    return path[len(top) + 1 :] if path.startswith(top + b"/") else None
