"""The first failure among the histories of many seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def first_failure(run: Callable[[int], object], seeds: Iterable[int]) -> str:
    """Returns the text of the first AssertionError that `run` raises; "" without one."""
    for seed in seeds:
        try:
            run(seed)
        except AssertionError as err:
            return str(err)
    return ""
