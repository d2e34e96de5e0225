"""A server looks seldom for cyclic garbage, and still finds it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from cachefs.launcher import gc_tuning


class Ring:
    """It refers to itself."""

    def __init__(self) -> None:
        self.ring = self


@pytest.fixture
def _as_before() -> Iterator[None]:
    """The test begins with nothing frozen (tests/conftest.py freezes), and leaves what it found."""
    thresholds = gc.get_threshold()
    gc.unfreeze()
    yield
    gc.set_threshold(*thresholds)


@pytest.mark.usefixtures("_as_before")
def test_what_was_there_is_not_looked_at_and_garbage_goes() -> None:
    there = gc.get_freeze_count() + len(gc.get_objects())
    gc_tuning.settle()
    assert gc.get_freeze_count() > there // 2
    first = Ring()
    gone = weakref.ref(first)
    del first
    for _ in range(2 * gc_tuning.THRESHOLDS[0]):
        Ring()
    assert gone() is None
