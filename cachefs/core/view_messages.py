"""The messages about native views. See `cachefs.core.messages`.

A *view* is a directory whose contents are complete on the node: the worker keeps a tree of hard
links to its files. A *cover* is a read-only clone of that tree, which a client mounts over the
directory of its mount. A cover shows only what the mount would show: the worker has every cover
removed before it lets a change through.
"""

from __future__ import annotations

import msgspec

from cachefs.core.message import Message
from cachefs.core.model import NamespaceId


class Cover(Message, frozen=True):
    """Event, for clients with `covers`: mount the tree over directory `ino`. The attached
    descriptor (O_PATH) is the tree's top. `path`: of the directory, below the root of the
    namespace. Repeated after CoverChanged with `covered` False and a reason."""

    view: int
    namespace: NamespaceId
    ino: int
    path: bytes


class Uncover(Message, frozen=True):
    """Event: unmount the cover of this view. The client reports the result by CoverChanged, also if
    it has no such cover."""

    view: int


class CoverChanged(Message, frozen=True):
    """Reports that a cover was laid or removed, was found missing, or could not be laid (`reason`).
    Before Attach a client sends one for each cover that its mount has, if Welcome has `covers`: a
    server that was started again then knows them before it changes anything. Not answered, but for
    a view that is unknown or not current the server sends Uncover, before it answers Attach."""

    view: int
    covered: bool
    reason: str = ""


class Freeze(Message, frozen=True):
    """Loads, pins and covers a directory. Idempotent. Answered by a ViewTable of this view, at once
    or, with `wait`, when its state is neither `building` nor `ready`, after 10 s at most: repeat
    it. Raises NotFound, NotADirectory, Unsupported."""

    namespace: NamespaceId
    path: bytes
    wait: bool = False


class Thaw(Message, frozen=True):
    """Removes the view of a directory. Answered by Done when its covers were removed, and recorded
    that it is no view any more. The worker then returns its files to admission. Raises NotFound."""

    namespace: NamespaceId
    path: bytes


class ListViews(Message, frozen=True):
    """Requests the views of a namespace. Answered by ViewTable."""

    namespace: NamespaceId


class ViewStatus(msgspec.Struct, frozen=True):
    """A view. `state`: `building` (files are loaded or linked), `ready` (no mount has covered it
    yet), `covered`, `waiting` (after a change, until the directory is quiet), `impossible`,
    `thawing` (no view any more; its files are being returned to admission, `files` are left).
    `since_s`: the time of that state (wall clock). `covers`: mounts that are covered. `reason`: one
    line, why it is not covered. `policy`: the policy `view` that made it; "": it was frozen."""

    view: int
    path: bytes
    files: int
    size_bytes: int
    state: str
    since_s: float
    covers: int = 0
    reason: str = ""
    policy: str = ""


class ViewTable(Message, frozen=True):
    views: list[ViewStatus]
