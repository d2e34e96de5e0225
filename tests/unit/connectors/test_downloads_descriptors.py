"""A download process leaves no descriptor open, whether it was started or not."""

from __future__ import annotations

import errno
import gc
import os
import resource
import sys
from pathlib import Path

import pytest

from connectors.download.downloader import Downloader
from tests.unit.connectors.downloads import Driven, answer
from tests.unit.connectors.raw_http import LIMIT_S, RawServer


def test_no_descriptor_and_no_process_is_left(raw: RawServer) -> None:
    raw.script = lambda came: answer(came) and False
    gc.collect()
    before = {name: link_of(name) for name in open_here()}
    for _ in range(3):
        driven = Driven()
        driven.download(raw, 0, 1000).check_right()
        driven.check_idle()
        driven.close()
        assert not Path(f"/proc/{driven.pid}").exists()
    raw.wait(lambda: raw.has_ended(3), "the server closes")
    del driven
    gc.collect()
    left = {name: link for name in open_here() if (link := link_of(name)) != before.get(name)}
    assert left == {}


def open_here() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def link_of(name: str) -> str | None:
    """Returns what a descriptor is of; None: the one of the listing itself."""
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except FileNotFoundError:
        return None


def test_no_descriptor_is_left_where_no_process_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/file")
    before = open_here()
    with pytest.raises(OSError, match="/no/such/file"):
        Downloader()
    gc.collect()
    assert open_here() == before


@pytest.mark.parametrize("free", range(8))
def test_no_descriptor_is_left_where_too_few_are_free(free: int) -> None:
    """Two are of the socket, one is of the memory, and the process needs some to start."""
    gc.collect()
    before = open_here()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, before))
    taken = [os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC) for _ in range(highest + 1)]
    for fd in sorted(taken)[-free:] if free else []:
        os.close(fd)
        taken.remove(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 1 + free, limits[1]))
    failures: list[int | None] = []
    try:
        made = Downloader()
        made.close()
        assert made.has_stopped(LIMIT_S)
        del made
    except OSError as error:
        failures.append(error.errno)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in taken:
            os.close(fd)
    gc.collect()
    assert failures in ([], [errno.EMFILE])
    assert open_here() == before
