"""Bounds what the pods of one namespace take of a node, so that pods of others find room.

The author of a pod chooses its inline volumes. Each other path, owner or mode is another shared
mount, with processes of the node, and a publish waits while its source does not answer.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from cachefs.core.errors import Throttled, Unreachable
from cachefs.holder.holdings import MAX_ENTRIES

MOST_MOUNTS: Final = MAX_ENTRIES // 4  # shared mounts of one namespace
KNOWN_S: Final = 600.0  # the kubelet publishes a volume in use again and again (requiresRepublish)
TURN_S: Final = 2.0  # for a place
UNKNOWN: Final = ""  # the kubelet names no namespace


class Use(NamedTuple):
    """A target that shows a shared mount."""

    target: str
    namespace: str
    mount: str


class MountShares:
    """Which shared mounts the volumes of each namespace use. For threads. A new driver learns it
    from the kubelet's repeated publishes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uses: dict[str, tuple[Use, float]] = {}  # target -> its use, until when

    def note(self, use: Use) -> None:
        """Records a volume that is published."""
        with self._lock:
            self._uses[use.target] = use, time.monotonic() + KNOWN_S

    def claim(self, use: Use) -> None:
        """Records a volume to be published. Raises Throttled if its namespace has too many."""
        others = self._mounts_of(use.namespace) - {use.mount}
        if use.namespace != UNKNOWN and len(others) >= MOST_MOUNTS:
            raise Throttled(
                f"volumes of the namespace {use.namespace} use {MOST_MOUNTS} mounts of this node",
                remedy="volumes of one path with the same attributes share a mount",
            )
        self.note(use)

    def _mounts_of(self, namespace: str) -> set[str]:
        now = time.monotonic()
        with self._lock:
            self._uses = {target: one for target, one in self._uses.items() if one[1] > now}
            return {use.mount for use, _ in self._uses.values() if use.namespace == namespace}

    def end(self, target: str) -> None:
        """Records that a target is gone. Idempotent."""
        with self._lock:
            self._uses.pop(target, None)


class Places:
    """Places for publishes that wait for a mount: `most`, and half of them for one namespace. For
    threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._changed = threading.Condition()
        self._taken: Counter[str] = Counter()  # by namespace

    @contextlib.contextmanager
    def taken(self, namespace: str) -> Iterator[None]:
        """Takes a place. Raises Unreachable if none is free within `TURN_S`."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_free(namespace), TURN_S):
                raise Unreachable("too many other volumes wait for their mounts")
            self._taken[namespace] += 1
        try:
            yield
        finally:
            with self._changed:
                self._taken[namespace] -= 1
                self._taken += Counter()  # drops those without a place
                self._changed.notify_all()

    def _is_free(self, namespace: str) -> bool:
        is_own_free = namespace == UNKNOWN or self._taken[namespace] < self._most // 2
        return is_own_free and self._taken.total() < self._most
