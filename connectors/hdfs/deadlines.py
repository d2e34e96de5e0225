"""The deadlines of calls of a library that has no time-outs.

A call runs in its caller's thread. After its deadline, one thread of this module interrupts it
again and again, until it has returned.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from connectors.call_threads import start_thread

AGAIN_S: Final = 0.02  # between interrupts: each may free one call, and the library may try again
AFTER_S: Final = 0.5  # an attempt that starts so soon after an interrupt may meet its effects
# Overdue calls of which none has returned within that time do not wait for what is interrupted.
SLOW_AFTER_S: Final = 5.0
SLOWLY_S: Final = 1.0
LONGEST_WAIT_S: Final = 60.0


class TimedCall:
    """A call in flight. `is_overdue`: an interrupt was meant for it; `since_s`: when its present
    attempt started."""

    __slots__ = ("due_s", "is_overdue", "since_s")

    def __init__(self, due_s: float, since_s: float) -> None:
        self.due_s = due_s
        self.since_s = since_s
        self.is_overdue = False


class Deadlines:
    """The calls in flight of one connector. Thread-safe. Owns one thread, from the first call until
    `close`."""

    def __init__(
        self, interrupt: Callable[[], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`interrupt` makes calls that wait for a silent server fail. It may disturb other calls,
        which must survive that."""
        self._interrupt = interrupt
        self._clock = clock
        self._changed = threading.Condition()
        self._calls: set[TimedCall] = set()
        self._wakes_at_s = 0.0
        self._freed_at_s = float("-inf")  # when the last overdue call returned
        self._disturbs_until_s = float("-inf")  # attempts that start before; endless while one runs
        self._thread: threading.Thread | None = None

    def begin(self, limit_s: float) -> TimedCall:
        """Records a call of the current thread, which starts now. The caller passes it to `end`.
        Raises Unreachable if no thread can be started."""
        with self._changed:
            now = self._clock()
            call = TimedCall(now + limit_s, now)
            if self._thread is None:
                self._wakes_at_s = call.due_s
                self._thread = start_thread(self._watch, "hdfs-deadlines")
            elif call.due_s < self._wakes_at_s:
                self._changed.notify_all()
            self._calls.add(call)
        return call

    def may_try_again(self, call: TimedCall) -> bool:
        """Returns whether an interrupt for other calls may be why an attempt of this call failed,
        and records that the next attempt starts. An interrupt that runs while an attempt starts, or
        has just ended then, counts for this attempt, too."""
        with self._changed:
            is_disturbed = not call.is_overdue and call.since_s < self._disturbs_until_s
            call.since_s = self._clock()
            return is_disturbed

    def end(self, call: TimedCall) -> None:
        with self._changed:
            self._calls.discard(call)
            if call.is_overdue:
                self._freed_at_s = self._clock()

    def close(self) -> None:
        """Ends the thread. Idempotent; a later call starts another."""
        with self._changed:
            thread, self._thread = self._thread, None
            self._changed.notify_all()
        if thread is not None:
            thread.join()

    def _watch(self) -> None:
        own = threading.current_thread()
        while True:
            with self._changed:
                if self._thread is not own:
                    return
                pause_s = self._wait()
            if pause_s:
                self._interrupt()
                with self._changed:
                    self._disturbs_until_s = self._clock() + AFTER_S
                time.sleep(pause_s)

    def _wait(self) -> float:
        """Waits for the next deadline or change. Returns the pause after an interrupt, which is due
        now, or 0.0."""
        now = self._clock()
        due_s = min((call.due_s for call in self._calls), default=now + LONGEST_WAIT_S)
        if due_s > now:
            self._wakes_at_s = due_s
            self._changed.wait(min(due_s - now, LONGEST_WAIT_S))
            return 0.0
        for call in self._calls:
            call.is_overdue = call.due_s <= now
        self._disturbs_until_s = float("inf")
        latest_s = max(call.due_s for call in self._calls if call.is_overdue)
        helped_s = max(latest_s, self._freed_at_s)
        return AGAIN_S if now - helped_s < SLOW_AFTER_S else SLOWLY_S
