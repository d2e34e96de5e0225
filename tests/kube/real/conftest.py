"""The cluster that the tests of this folder share."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kube.real.cgroups import PREFIX
from tests.kube.real.cluster import Cluster
from tests.kube.real.leftovers import nothing_left

_start_s: list[float] = []


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster for all tests. At its end, nothing of it may be left."""
    with nothing_left(), tempfile.TemporaryDirectory(prefix=PREFIX) as directory:
        began_s = time.monotonic()
        with Cluster(Path(directory, "c")) as made:
            _start_s.append(time.monotonic() - began_s)
            print(f"the node was Ready after {_start_s[0]:.1f} s")
            yield made


@pytest.fixture
def start_s(cluster: Cluster) -> float:
    """The seconds from nothing to a Ready node."""
    return _start_s[0]
