"""Random deaths of a mount's processes: single ones, pairs 0.05 to 1 s apart, and stopped processes
that must be replaced. Each act returns once the mount has all its processes again.

Client and supervisor hold the mount together. If both are to die, the second is killed after it has
started a successor of the first; killed at once they would end the mount. A supervisor is never
stopped: no process replaces one that hangs.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from bench.mounts import BenchFailed
from bench.steady_readers import Record
from cachefs.launcher.processes import answers
from cachefs.launcher.state import MountRecord, StateHome, read_pointer
from tests.services.processes import NotInTime, children, is_running, next_child, wait_until

NEEDED = ("client", "server", "supervisor")
GAP_S = (0.05, 1.0)
LIMIT_S = 90.0  # until all processes run again


class Death(NamedTuple):
    """The act, its time (CLOCK_MONOTONIC), and the number of killed processes."""

    kind: str
    began_s: float
    kills: int


class Victims:
    """The processes of one mount; `deaths` lists the acts in order."""

    def __init__(self, home: StateHome, mountpoint: Path, rng: random.Random) -> None:
        self.deaths: list[Death] = []
        self.killed: Counter[str] = Counter()
        self._home = home
        self._mountpoint = str(mountpoint)
        self._rng = rng

    def acts(self) -> Iterator[Callable[[], None]]:
        """Yields the next act, without end: five kills in four acts."""
        yield lambda: self.kill_pair("server", "client")
        for number in itertools.count(1):
            if number % 4 == 1:
                yield lambda: self.kill(self._rng.choice(NEEDED))
            elif number % 4 == 3:
                yield self._stop_any
            else:
                yield lambda: self.kill_pair(*self._rng.sample(NEEDED, 2))

    def _stop_any(self) -> None:
        self.stop(self._rng.choice([role for role in NEEDED if role != "supervisor"]))

    def kill(self, role: str) -> None:
        with self._act(f"SIGKILL of the {role}", role):
            self._signal(role, signal.SIGKILL)

    def kill_pair(self, first: str, second: str) -> None:
        gap_s = self._rng.uniform(*GAP_S)
        with self._act(f"SIGKILL of the {first}, then of the {second}", first, second):
            succeeds = {first, second} == {"client", "supervisor"}
            before = children(self.pid(second)) if succeeds else set()
            self._signal(first, signal.SIGKILL)
            threading.Event().wait(gap_s)
            if succeeds:
                next_child(self.pid(second), before)
            self._signal(second, signal.SIGKILL)

    def stop(self, role: str) -> None:
        """Stops a process, and waits until its supervising process has killed it."""
        with self._act(f"SIGSTOP of the {role}"):
            pid = self._signal(role, signal.SIGSTOP)
            wait_until(lambda: not is_running(pid), f"the stopped {role} is replaced", LIMIT_S)

    def pid(self, role: str) -> int:
        """Returns a pid from the records on disk; 0 if there is none. Sends no request."""
        if role in ("client", "supervisor"):
            return self._record.pid if role == "client" else self._record.supervisor
        pointer = read_pointer(Path(self._record.socket).parent)
        if pointer is None:
            return 0
        return pointer.pid

    @property
    def _record(self) -> MountRecord:
        found = self._home.find_mount(self._mountpoint)
        if found is None:
            raise BenchFailed("the mount has no record")
        return found

    @contextlib.contextmanager
    def _act(self, kind: str, *killed: str) -> Iterator[None]:
        self.deaths.append(Death(kind, time.monotonic(), len(killed)))
        self.killed.update(killed)
        try:
            yield
            wait_until(self._is_whole, "all processes run again", LIMIT_S)
        except NotInTime as err:
            raise BenchFailed(f"{kind}: {err}") from err

    def _signal(self, role: str, number: signal.Signals) -> int:
        """Sends a signal, waits for the end of a process that it kills, and returns the pid."""
        pid: int = wait_until(lambda: self.pid(role), f"a {role} runs", LIMIT_S)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        if number == signal.SIGKILL:
            wait_until(lambda: not is_running(pid), f"the {role} is dead", LIMIT_S)
        return pid

    def _is_whole(self) -> bool:
        if not all(is_running(self.pid(role)) for role in NEEDED):
            return False
        pointer = read_pointer(Path(self._record.socket).parent)
        return pointer is not None and answers(pointer)


def longest_pauses(deaths: list[Death], records: Iterable[Record]) -> dict[str, float]:
    """Returns, by kind of death, the longest recorded slow operation during or after one, s."""
    longest = dict.fromkeys((death.kind for death in deaths), 0.0)
    for record in records:
        for began_s, took_s in record.slow:
            death = _cause(deaths, began_s, began_s + took_s)
            if death is not None:
                longest[death.kind] = max(longest[death.kind], took_s)
    return longest


def _cause(deaths: list[Death], began_s: float, ended_s: float) -> Death | None:
    """Returns the first death within an operation, else the last one before it."""
    within = (death for death in deaths if began_s <= death.began_s < ended_s)
    before = (death for death in reversed(deaths) if death.began_s < began_s)
    return next(within, None) or next(before, None)
