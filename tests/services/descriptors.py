"""A process, this one or another, that may open no or few more files."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
from collections.abc import Iterator

STANDARD = 3  # standard input, output and error; `poll` refuses more sockets than the limit


@contextlib.contextmanager
def no_descriptor_left(pid: int | None = None) -> Iterator[None]:
    """No file can be opened in the process; those that are open stay so."""
    with _limit(pid or os.getpid(), STANDARD):
        yield


@contextlib.contextmanager
def descriptors_left(count: int, pid: int | None = None) -> Iterator[None]:
    """So many files can be opened in the process."""
    chosen = pid or os.getpid()
    used = {int(name) for name in os.listdir(f"/proc/{chosen}/fd")}
    free = (number for number in itertools.count() if number not in used)
    with _limit(chosen, next(itertools.islice(free, count, None))):
        yield


@contextlib.contextmanager
def _limit(pid: int, count: int) -> Iterator[None]:
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (count, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
