"""Tests side by side in several processes (`pytest -n`): files stay whole, clusters take turns,
and what is marked `alone` (it measures CPU time, say) runs while no other test does."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xdist.scheduler.loadscope import LoadScopeScheduling

# Several real clusters at once would be slow to notice their silent members on few cores.
TOGETHER = {"tests/integration/test_cluster": "clusters"}


def group(node_id: str) -> str:
    """Tests of one group run in one process, one after another."""
    path = node_id.partition("::")[0]
    return next((name for start, name in TOGETHER.items() if path.startswith(start)), path)


class ByGroup(LoadScopeScheduling):
    """Hands out group after group, in the order in which pytest found them."""

    def _split_scope(self, nodeid: Any) -> str:
        return group(nodeid)


class Turns:
    """Shared by the processes of one run through a `directory`: who is alone waits for all others
    to end, and nobody begins meanwhile."""

    def __init__(self, directory: Path) -> None:
        self._gate = (directory / "gate").open("w")
        self._hall = (directory / "hall").open("w")

    def close(self) -> None:
        self._gate.close()
        self._hall.close()

    @contextlib.contextmanager
    def turn(self, alone: bool) -> Iterator[None]:
        fcntl.flock(self._gate, fcntl.LOCK_EX)  # who waits to be alone is passed by nobody
        try:
            fcntl.flock(self._hall, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        finally:
            fcntl.flock(self._gate, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._hall, fcntl.LOCK_UN)
