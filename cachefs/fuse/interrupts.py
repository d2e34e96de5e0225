"""Ends the wait of a caller that received a signal.

pyfuse3 does not pass on INTERRUPT, and the kernel sends it once per request, for whichever signal
was first. So one task polls the callers that wait for longer than `PATIENCE_S`. A signal that is
pending, neither blocked nor ignored, and meant to end something cancels the wait. Signals of job
control, profiling timers and similar ones do not: an `open` that they interrupt is not restarted
and would never succeed.
"""

from __future__ import annotations

import bisect
import signal
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeVar

import trio

from cachefs.core.errors import Interrupted

PATIENCE_S: Final = 0.05  # between polls, and before the first one
MAX_PIDS_PER_LOOK: Final = 64  # reading one takes about 20 us
_PASSED_OVER: Final = frozenset(
    (
        signal.SIGCHLD,
        signal.SIGCONT,
        signal.SIGIO,
        signal.SIGPROF,
        signal.SIGSTOP,
        signal.SIGTSTP,
        signal.SIGTTIN,
        signal.SIGTTOU,
        signal.SIGURG,
        signal.SIGVTALRM,
        signal.SIGWINCH,
    )
)
_MEANT: Final = (1 << 64) - 1 & ~sum(1 << number - 1 for number in _PASSED_OVER)

Result = TypeVar("Result")


def has_signal(status: bytes) -> bool:
    """Returns whether a /proc/PID/status text shows a pending signal that ends a wait. Pure."""
    masks = {b"SigPnd": 0, b"ShdPnd": 0, b"SigBlk": 0, b"SigIgn": 0}
    for line in status.splitlines():
        name, _, value = line.partition(b":")
        if name in masks:
            masks[name] = int(value, 16)
    pending = masks[b"SigPnd"] | masks[b"ShdPnd"]
    return bool(pending & ~masks[b"SigBlk"] & ~masks[b"SigIgn"] & _MEANT)


def read_status(pid: int) -> bytes:
    """Returns /proc/PID/status, b"" when the process (or thread) does not exist."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return file.read()
    except OSError:
        return b""


class LongWait(NamedTuple):
    """A waiting caller; `interrupt` raises its argument in the wait."""

    pid: int
    interrupt: Callable[[Interrupted], None]


class Interrupts:
    """The waits of one mount. They are interrupted only while `watch` runs."""

    def __init__(self, status_of: Callable[[int], bytes] = read_status) -> None:
        self._status_of = status_of
        self._waits: dict[int, LongWait] = {}  # the oldest first
        self._last = 0
        self._looked_at = 0  # the wait at which the last poll ended
        self._some = trio.Event()

    async def run(
        self,
        pid: int,
        interrupt: Callable[[Interrupted], None],
        work: Callable[[], Awaitable[Result]],
    ) -> Result:
        """Returns the result of `work()`. When the caller receives a signal, `watch` calls
        `interrupt`, which raises its argument where `work` waits. pid 0: no caller to watch."""
        if not pid:
            return await work()
        number = self.add(pid, interrupt)
        try:
            return await work()
        finally:
            self.remove(number)

    def add(self, pid: int, interrupt: Callable[[Interrupted], None]) -> int:
        """Watches a wait. Returns its number for `remove`."""
        self._last += 1
        self._waits[self._last] = LongWait(pid, interrupt)
        self._some.set()
        return self._last

    def remove(self, number: int) -> None:
        self._waits.pop(number, None)

    async def watch(self) -> None:
        """Polls long waits, until cancelled."""
        last_seen = 0
        while True:
            if not self._waits:
                self._some = trio.Event()
                await self._some.wait()
            await trio.sleep(PATIENCE_S)
            self.look(last_seen)
            last_seen = self._last

    def look(self, last: int) -> None:
        """Interrupts the waits up to the `last` one whose callers received a signal. Checks
        `MAX_PIDS_PER_LOOK` callers per call; the next call continues where this one ends."""
        signalled: dict[int, bool] = {}
        for number in self._in_turn(last):
            waiting = self._waits.get(number)
            if waiting is None:  # removed when another wait was interrupted
                continue
            if waiting.pid not in signalled:
                if len(signalled) >= MAX_PIDS_PER_LOOK:
                    return
                signalled[waiting.pid] = has_signal(self._status_of(waiting.pid))
            self._looked_at = number
            if signalled[waiting.pid]:
                waiting.interrupt(Interrupted("the caller got a signal"))

    def _in_turn(self, last: int) -> list[int]:
        """Returns the waits up to the `last` one, starting after the last one polled."""
        numbers = [number for number in self._waits if number <= last]
        start = bisect.bisect_right(numbers, self._looked_at)
        return numbers[start:] + numbers[:start]
