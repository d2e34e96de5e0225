"""An automaton of a glob, whose time for a path is bounded by their lengths. Pure.

A regular expression with several stars may take hours for one name, and stops the whole process.
The automaton is a number: bit n is set while the bytes so far match the first n steps.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Final, NamedTuple

SLASH: Final = ord("/")
ANY: Final = range(256)


class Step(NamedTuple):
    """One step. A byte in `takes` leads behind it, one in `keeps` leads nowhere. The next `skips`
    steps may be entered without a byte."""

    takes: Container[int] = ()
    keeps: Container[int] = ()
    skips: int = 0


class GlobAutomaton:
    """The automaton of these steps, and of everything below a path that they match."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._takes = [_mask(byte in step.takes for step in steps) for byte in ANY]
        self._keeps = [_mask(byte in step.keeps for step in steps) for byte in ANY]
        self._skips = [_mask(step.skips >= n for step in steps) for n in (1, 2)]
        self._end = 1 << len(steps)
        self._start = self._entered(1)

    def matches(self, path: bytes) -> bool:
        """Returns whether the path, or a directory above it, matches."""
        state, end, takes, keeps = self._start, self._end, self._takes, self._keeps
        for byte in path:
            if state & end and byte == SLASH:
                return True
            state = self._entered((state & takes[byte]) << 1 | state & keeps[byte])
            if not state:
                return False
        return bool(state & end)

    def _entered(self, state: int) -> int:
        """Returns the state with the steps that are entered without a byte."""
        one, two = self._skips
        while True:
            more = state | (state & one) << 1 | (state & two) << 2
            if more == state:
                return state
            state = more


def _mask(bits: Iterable[bool]) -> int:
    """Returns the number with these bits, the lowest first."""
    return sum(1 << n for n, bit in enumerate(bits) if bit)
