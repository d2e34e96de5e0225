"""Interrupts a call by a signal handler that raises, at a chosen bytecode.

CPython runs signal handlers at the start of a function, after a call, and at a backward jump. A
`Point` is one of these places, in one function. A trace function raises SIGINT just before the
bytecode there, so that the handler runs where CPython itself decides, with the exception table of
that bytecode.
"""

from __future__ import annotations

import ctypes
import dis
import signal
import sys
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

_TESTS: Final = "/tests/"
_START: Final = -1  # in place of the offset of a bytecode: the start of the function
_trip: Any = ctypes.PyDLL(None).PyErr_SetInterrupt  # a C function: no handler runs in it
_trip.argtypes = [ctypes.py_object] * 3
_trip.restype = None


class Interruption(BaseException):
    """What the signal handler raises."""


class Point(NamedTuple):
    """A bytecode of a function. `armed_at`: the bytecode at which the tracer prepares the signal:
    of a call the one before it. `occurrence`: which of the times that it comes there."""

    code: CodeType
    offset: int
    armed_at: int
    occurrence: int

    def __str__(self) -> str:
        where = f"{self.code.co_filename.rpartition('/')[2]}:{self.line} {self.code.co_qualname}"
        return f"{where}+{self.offset} ({self.occurrence})"

    @property
    def line(self) -> int:
        lines = [line for start, end, line in self.code.co_lines() if start <= self.offset < end]
        return lines[0] or 0 if lines else self.code.co_firstlineno


def points_of(act: Callable[[], object]) -> list[Point]:
    """Runs a call. Returns where it can be interrupted: each place, when the call comes there the
    first time."""
    recorder = _Recorder()
    sys.settrace(recorder.trace)
    try:
        act()
    finally:
        sys.settrace(None)
    return [*recorder.points.values()]


def interrupt(
    act: Callable[[], object], point: Point, handler: Callable[[], object] | None = None
) -> bool:
    """Runs a call that is interrupted at a point, by a handler that raises, or by this one. Returns
    whether the exception of the handler reached the caller; of this one, whether it ran."""
    tracer = _Tracer(point, handler or _raise)
    before = signal.signal(signal.SIGINT, tracer.handle)
    sys.settrace(tracer.trace)
    try:
        act()
    except Interruption:
        return True
    finally:
        sys.settrace(None)
        signal.signal(signal.SIGINT, before)
    return tracer.raised == (handler is not None)


class _Recorder:
    def __init__(self) -> None:
        self.points: dict[tuple[CodeType, int, int], Point] = {}
        self._arrivals: Counter[tuple[CodeType, int]] = Counter()
        self._before: dict[FrameType, int] = {}

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "call":
            if _TESTS in frame.f_code.co_filename:
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            self._arrivals[frame.f_code, _START] += 1
            self._add(frame.f_code, _START, _START)
        elif event == "opcode":
            name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            self._arrivals[frame.f_code, frame.f_lasti] += 1
            if name.startswith("CALL"):
                self._add(frame.f_code, frame.f_lasti, self._before[frame])
            elif name.startswith("JUMP_BACKWARD"):
                self._add(frame.f_code, frame.f_lasti, frame.f_lasti)
            self._before[frame] = frame.f_lasti
        elif event == "return":
            self._before.pop(frame, None)
        return self.trace

    def _add(self, code: CodeType, offset: int, armed_at: int) -> None:
        point = Point(code, offset, armed_at, self._arrivals[code, armed_at])
        self.points.setdefault((code, offset, armed_at), point)


def _raise() -> None:
    raise Interruption


class _Tracer:
    def __init__(self, point: Point, handler: Callable[[], object]) -> None:
        self.raised = False  # the signal
        self._handler = handler
        self._point = point
        self._left = point.occurrence

    def handle(self, *_: object) -> None:
        sys.settrace(None)
        self.raised = True
        self._handler()

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        if event != "call" or _TESTS in frame.f_code.co_filename:
            return None
        if frame.f_code is not self._point.code:
            return None
        if self._point.offset == _START:
            self._left -= 1
            if not self._left:
                self.handle()
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._in_frame

    def _in_frame(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "opcode" and frame.f_lasti == self._point.armed_at:
            self._left -= 1
            if not self._left and self._point.offset == self._point.armed_at:
                self.handle()
            elif not self._left:
                sys.settrace(_ignored)
                return _trip
        return self._in_frame


def _ignored(*_: object) -> None:
    """Traces nothing, but keeps the tracing of the frames above."""
