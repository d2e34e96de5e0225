"""The writer of a process's log: a thread, so that a disk that hangs or is frozen, or a reader of
standard error that has stopped, stops no event loop.

While lines are written in time, a line is in the log when the call that logged it returns. After a
late one no caller waits until the thread has caught up: lines are queued, and left out if the queue
is full.
"""

from __future__ import annotations

import logging
import logging.handlers
import queue
import threading
import time
from typing import Final, NamedTuple

MOST_LINES: Final = 2_000  # that wait for the thread
PATIENCE_S: Final = 0.1  # of a caller, for its line
REPORTED_S: Final = 5.0  # a shorter delay is not logged, unless it cost lines
CLOSE_S: Final = 2.0  # for the lines that wait at the end of the process


class _Line(NamedTuple):
    """A formatted line. The thread sets `written` when the sink has it."""

    record: logging.LogRecord
    written: threading.Event


class LogWriter(logging.handlers.QueueHandler):
    """Formats records in the threads that log them, and writes them to a sink in its own thread.

    Only this thread uses the sink: at the end of a process whose log is stuck, nothing else may
    wait for the sink's locks.
    """

    def __init__(self, sink: logging.Handler) -> None:
        self._lines: queue.Queue[_Line | None] = queue.Queue(MOST_LINES)
        super().__init__(self._lines)
        self._sink = sink
        self._late_since = 0.0  # 0: callers wait for their lines
        self._left_out = 0
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def enqueue(self, record: logging.LogRecord) -> None:
        """Has a formatted record written, and waits up to `PATIENCE_S` for that."""
        line = _Line(record, threading.Event())
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._left_out += 1
            return
        if not self._late_since and not line.written.wait(PATIENCE_S):
            self._late_since = time.monotonic()
            if line.written.is_set():  # the thread may have looked before
                self._late_since = 0.0

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            self._sink.handle(line.record)
            line.written.set()
            if self._late_since and self._lines.empty():
                self._catch_up()
        if self._late_since:
            self._catch_up()
        self._sink.close()

    def _catch_up(self) -> None:
        late_s, left_out = time.monotonic() - self._late_since + PATIENCE_S, self._left_out
        self._late_since, self._left_out = 0.0, 0
        if late_s < REPORTED_S and not left_out:
            return
        text = "this log could not be written for %.0f s; %d lines were left out"
        arguments = (text, (late_s, left_out), None)
        record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, *arguments)
        self._sink.handle(self.prepare(record))

    def close(self) -> None:
        """Has the queued lines written, within `CLOSE_S`. Idempotent."""
        if self._thread.is_alive():
            try:
                self._lines.put(None, timeout=CLOSE_S)
            except queue.Full:
                return
            self._thread.join(CLOSE_S)
        super().close()
