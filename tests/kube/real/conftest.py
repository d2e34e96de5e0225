"""The cluster that the tests of this folder share."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kube.real.cgroups import PREFIX, all_groups
from tests.kube.real.cluster import START_S, Cluster

_start_s: list[float] = []


def state() -> dict[str, set[str]]:
    """Returns what a cluster that has ended must have left as it was."""
    return {
        "processes": {path.name for path in Path("/proc").glob("[0-9]*")},
        "mounts": set(Path("/proc/self/mountinfo").read_text().splitlines()),
        "control groups": {*map(str, all_groups())},
        "files": {name for name in os.listdir(tempfile.gettempdir()) if name.startswith(PREFIX)},
    }


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster for all tests. At its end, nothing of it may be left."""
    before, began_s = state(), time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix=PREFIX) as directory,
        Cluster(Path(directory, "c")) as made,
    ):
        _start_s.append(time.monotonic() - began_s)
        print(f"the node was Ready after {_start_s[0]:.1f} s")
        yield made
    after = state()
    assert {name: after[name] - before[name] for name in before} == {name: set() for name in before}


@pytest.fixture
def start_s(cluster: Cluster) -> float:
    """The seconds from nothing to a Ready node."""
    assert _start_s[0] < START_S
    return _start_s[0]
