"""The mount table in memory and the paths of directories.

A path is found by following back pointers to the nearest mount root. Directories' paths are cached
in a bounded map, which is cleared when any directory is removed (which is rare).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from cachefs.core.errors import NotADirectory, NotFound, Stale
from cachefs.core.model import ROOT_INO
from cachefs.core.policies import shown
from connectors.base import Connector
from master.state.background import WalkStatus
from master.state.feed_state import FeedState
from master.state.freshness import valid_for
from master.state.health import OriginHealth
from master.state.records import MountRecord, name_of
from master.store.snapshot import Names

MAX_PATHS: Final = 10_000
FEED_S: Final = 30.0  # a feed that the master reads is up to date for at least that long
MAX_DEPTH: Final = 4096


@dataclass(slots=True, eq=False)
class Mount:
    """A root of the mount table: a UFS at a directory of the namespace."""

    root: int
    record: MountRecord
    connector: Connector
    interval_s: float
    owned: bool = False  # the connector is closed with the mount
    health: OriginHealth = field(default_factory=OriginHealth)
    key: str = ""  # of the UFS
    feed: FeedState = field(default_factory=FeedState)
    walks: WalkStatus = field(default_factory=WalkStatus)  # in the background
    turns: dict[str, asyncio.Semaphore] = field(default_factory=dict)  # see `OriginThreads`

    def __post_init__(self) -> None:
        self.key = self.record.source.key

    @property
    def is_void(self) -> bool:
        """True if the directory was created without a source."""
        return not self.key

    def status(self) -> dict[str, Any]:
        """Returns plain values for `cachefs status`."""
        return {
            "url": self.record.source.url,
            "path": shown(self.record.path),
            "sync_interval_s": self.interval_s,
            "pushed": self.feed.reported,
            "pushed_at": self.feed.reported_at,
            "feed_current_at": self.feed.current_at,
            "feed_error": self.feed.error,
            **self.walks.status(),
            **self.health.status(),
        }

    def reported_since(self, now: float) -> float | None:
        """Returns since when the store reports every change; None if that is not known. A store
        that posted nothing for a push interval may have ceased to. A feed that the master reads is
        up to date if it was so within the last sync interval."""
        is_read = self.record.push.startswith(("sqs:", "poll:"))
        valid_s = max(FEED_S, self.interval_s) if is_read else self.record.push_interval_s
        return self.feed.since(now, valid_s)

    def shown(self, path: bytes) -> str:
        """Returns a path below the root as a URL for log lines."""
        return f"{self.record.source.url.rstrip('/')}/{path.decode('utf-8', 'backslashreplace')}"

    def in_namespace(self, path: bytes) -> bytes:
        """Converts a path below this root to a path below the namespace root."""
        return join(self.record.path, path)


class Place(NamedTuple):
    """A directory: its mount, its path below the mount's root, and its sync interval."""

    mount: Mount
    path: bytes
    interval_s: float

    def valid_s(self, checked_at: float, now: float) -> float:
        """Returns for how many seconds metadata of the store is still fresh; 0: the caller must
        ask the origin. Metadata since which the origin reports its changes is fresh for the push
        interval; the nodes ask for it again after the sync interval, since reports may end."""
        valid_s = valid_for(checked_at, self.interval_s, now)
        if valid_s or self.interval_s <= 0:
            return valid_s
        since = self.mount.reported_since(now)
        if since is None or checked_at < since:
            return 0.0
        return min(self.interval_s, valid_for(checked_at, self.mount.record.push_interval_s, now))

    def of(self, name: bytes) -> bytes:
        """Returns the path of a child below the mount's root."""
        return join(self.path, name)


class Tree:
    """The mount table and the directory paths of one namespace."""

    def __init__(self) -> None:
        self._mounts: dict[int, Mount] = {}
        self._places: OrderedDict[int, Place] = OrderedDict()
        self._held: dict[int, dict[bytes, int]] = {}
        self._held_inos: frozenset[int] = frozenset()
        # The policies' sync interval of a namespace path. Call `forget_paths` when it changes.
        self.interval_of: Callable[[bytes], float | None] = lambda path: None

    def add(self, mount: Mount) -> None:
        self._mounts[mount.root] = mount
        self._places.clear()

    def remove(self, root: int) -> Mount:
        self._places.clear()
        return self._mounts.pop(root)

    def load_held(self, names: Names) -> None:
        """Reloads the held dentries (names of the mount table) from the store."""
        held: dict[int, dict[bytes, int]] = {}
        for parent, key, ino in names.held():
            held.setdefault(parent, {})[name_of(key)] = ino
        self._held = held
        self._held_inos = frozenset(ino for below in held.values() for ino in below.values())
        self._places.clear()

    def held_child(self, parent: int, name: bytes) -> int | None:
        """Returns the ino of a name that belongs to the mount table, or None."""
        below = self._held.get(parent)
        return None if below is None else below.get(name)

    def held_names(self, parent: int) -> frozenset[bytes]:
        """Returns the names in a directory that belong to the mount table."""
        return frozenset(self._held.get(parent, ()))

    def is_held(self, ino: int) -> bool:
        """Returns whether the ino is a mount's root or an ancestor of one."""
        return ino in self._held_inos or ino == ROOT_INO

    def mounts(self) -> list[Mount]:
        """Returns the mounts with a source, in the order of their addition."""
        return [mount for mount in self._mounts.values() if not mount.is_void]

    def root(self, ino: int) -> Mount | None:
        """Returns the mount with this root, or None."""
        return self._mounts.get(ino)

    def by_path(self, path: bytes) -> Mount | None:
        """Returns the mount of the source at a path of the namespace, or None."""
        return next((mount for mount in self.mounts() if mount.record.path == path), None)

    def by_key(self, key: str) -> Mount:
        """Returns a mount of a UFS. Raises NotFound if no mount has the key."""
        for mount in self.mounts():
            if mount.key == key:
                return mount
        raise NotFound(f"no source {key} in the mount table")

    def directory(self, names: Names, ino: int) -> Place:
        """Returns a directory's place. Raises Stale if it or an ancestor was removed,
        NotADirectory."""
        place = self._places.get(ino)
        if place is None:
            place = self._find(names, ino)
            self._places[ino] = place
            if len(self._places) > MAX_PATHS:
                self._places.popitem(last=False)
        return place

    def forget_paths(self) -> None:
        """Clears the cached paths. Called after a directory was removed or policies changed."""
        self._places.clear()

    def _find(self, names: Names, ino: int) -> Place:
        segments: list[bytes] = []
        at = ino
        while (mount := self._mounts.get(at)) is None:
            above = names.place(at)
            if above is None or len(segments) > MAX_DEPTH:
                raise Stale(f"inode {ino} is gone")
            if not above[1].endswith(b"/"):
                raise NotADirectory(f"inode {ino} is not a directory")
            segments.append(name_of(above[1]))
            at = above[0]
        path = b"/".join(reversed(segments))
        said_s = self.interval_of(mount.in_namespace(path))
        return Place(mount, path, mount.interval_s if said_s is None else said_s)


def join(path: bytes, name: bytes) -> bytes:
    return path + b"/" + name if path and name else path or name
