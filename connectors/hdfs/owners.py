"""The ids of the users and groups that HDFS names: those of this machine, by name."""

from __future__ import annotations

import grp
import pwd
import threading
import time
from collections.abc import Callable
from typing import Final

UNKNOWN: Final = -1  # the mount's own user or group is shown
MOST_KNOWN: Final = 4096
KEPT_S: Final = 300.0  # then a name is looked up again


def user_id(name: str) -> int:
    """Returns the id of a user of this machine, or UNKNOWN."""
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return UNKNOWN


def group_id(name: str) -> int:
    """Returns the id of a group of this machine, or UNKNOWN."""
    try:
        return grp.getgrnam(name).gr_gid
    except (KeyError, ValueError):
        return UNKNOWN


class Ids:
    """Ids by name, remembered for a while: a look-up may ask a directory server. Thread-safe."""

    def __init__(
        self, look_up: Callable[[str], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._look_up = look_up
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, int] = {}
        self._ends_s = 0.0

    def id_of(self, name: str) -> int:
        known = self._known.get(name)
        if known is not None and self._clock() < self._ends_s:
            return known
        found = self._look_up(name)
        with self._lock:
            if len(self._known) >= MOST_KNOWN or self._clock() >= self._ends_s:
                self._known, self._ends_s = {}, self._clock() + KEPT_S
            self._known[name] = found
        return found
