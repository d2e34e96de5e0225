"""The sources that a process reads, and what makes them its own after a fork."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from cachefs.core.mountinfo import Mounts
from cachefs.library import calls
from cachefs.library.mount_table import MountTable
from cachefs.library.places import Places
from cachefs.library.source import Source

MOST_FOLDERS: Final = 1024


class Located(NamedTuple):
    """A path in a source."""

    source: Source
    path: bytes


class Library:
    """Sources by place: one connection a source, shared by all trees and threads. Connections are
    closed at the end of the process."""

    def __init__(self) -> None:
        self._mounts = MountTable()
        self._places = Places(self._mounts)
        self._sources: dict[str, Source] = {}
        self._lock = threading.Lock()
        # The mount points of folders, of one snapshot of the mounts
        self._folders: tuple[Mounts, dict[str, str]] = (Mounts(()), {})
        in_child, at_exit = weakref.WeakMethod(self.abandon), weakref.WeakMethod(self.close)
        os.register_at_fork(after_in_child=lambda: _call(in_child))
        atexit.register(lambda: _call(at_exit))

    def locate(self, url: str, settings: Mapping[str, Any]) -> Located:
        """Returns the source of a path or URL, and the path in it. Connects to nothing. Raises the
        typed errors of `Places.find`."""
        with self._lock:
            place = self._places.find(url, settings)
            source = self._sources.get(place.dialer.key)
            if source is None:
                source = self._sources[place.dialer.key] = Source(place.dialer)
            return Located(source, place.path)

    def mountpoint_of(self, path: str) -> str:
        """Returns the mount point of the CacheFS mount that an absolute path, links aside, is on;
        "" if it is on none."""
        mounts = self._mounts.current()
        of, folders = self._folders
        if of is not mounts or len(folders) >= MOST_FOLDERS:
            folders = {}
            self._folders = (mounts, folders)
        folder = path.rpartition("/")[0] if mounts.at(path) is None else path
        found = folders.get(folder)
        if found is None:
            mount = mounts.containing(folder)
            found = mount.mountpoint if mount is not None and mount.is_cachefs else ""
            folders[folder] = found
        return found

    @property
    def version(self) -> int:
        """Changes when a path may lead to another source."""
        self._mounts.current()
        return self._mounts.version

    def close(self) -> None:
        """Closes all connections. The next use connects again."""
        calls.call(self._close)

    def _close(self) -> None:
        with self._lock:
            for source in self._sources.values():
                source.close()
            self._mounts.close()

    def abandon(self) -> None:
        """Makes the library one of this process, after a fork."""
        calls.abandon()
        self._lock = threading.Lock()
        self._mounts.abandon()
        for source in self._sources.values():
            source.abandon()


def _call(method: weakref.WeakMethod[Any]) -> None:
    function = method()
    if function is not None:
        function()
