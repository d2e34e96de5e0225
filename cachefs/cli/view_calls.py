"""The views of a mount: the directories that the kernel alone shows, as commands name them."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from cachefs.cli import output, settings
from cachefs.cli.session import Session, Target, attached, find_target, path_in_mount
from cachefs.cli.status_view import view_text
from cachefs.core import messages as m
from cachefs.core.config import Config
from cachefs.core.errors import Unsupported
from cachefs.core.messages import ViewStatus

COVERED = "covered"
READY = "ready"
UNFINISHED = ("building", READY)
THAWING = "thawing"


@contextlib.contextmanager
def opened(path: str, chosen: Config) -> Iterator[tuple[Session, Target]]:
    """Opens the server of a local path's mount. Raises NotFound for a path below no mount."""
    target = find_target(path, settings.state_home(chosen))
    with attached(target.record) as session:
        yield session, target


def check(session: Session) -> None:
    """Raises Unsupported if the server of a mount is too old to have views."""
    if not session.knows_views:
        raise Unsupported(
            "the mount's server has no views: it is of an earlier version",
            path=session.record.mountpoint,
            remedy=f"upgrade it: cachefs mount --upgrade {shlex.quote(session.record.mountpoint)}",
        )


def views_of(session: Session) -> list[ViewStatus]:
    """Returns the views of a mount's namespace, none if its server is too old to have any."""
    if not session.knows_views:
        return []
    return session.call(m.ListViews(session.namespace), m.ViewTable).views


def view_at(views: Sequence[ViewStatus], path: bytes) -> ViewStatus | None:
    """Returns the view of a directory at or above a path of the namespace."""
    above = [view for view in views if _is_at_or_above(view.path, path.strip(b"/"))]
    return max(above, key=lambda view: (view.state != THAWING, len(view.path)), default=None)


def facts_at(server: object, target: Target) -> dict[str, str]:
    """Returns the view that shows a path of a mount, as a value for a document; empty without."""
    if not isinstance(server, Session):
        return {}
    view = view_at(views_of(server), target.in_namespace)
    return {} if view is None else {"view": text_of(view)}


def _is_at_or_above(top: bytes, path: bytes) -> bool:
    top = top.strip(b"/")
    return not top or path == top or path.startswith(top + b"/")


def document(view: ViewStatus, target: Target) -> dict[str, Any]:
    """Returns a view as plain values."""
    return {
        "path": path_in_mount(target.record, view.path),
        "state": view.state,
        "since": view.since_s,
        "files": view.files,
        "size_bytes": view.size_bytes,
        "mounts": view.covers,
        "policy": view.policy,
        "reason": view.reason,
    }


def text_of(view: ViewStatus) -> str:
    return view_text(view.state, view.since_s, view.files, view.size_bytes, view.reason)


def since(view: ViewStatus) -> str:
    return output.time_of(int(view.since_s * 1_000_000_000))
