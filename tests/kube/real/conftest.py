"""The cluster that the tests of this folder share."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kube.real import reader
from tests.kube.real.cgroups import PREFIX
from tests.kube.real.cluster import Cluster
from tests.kube.real.leftovers import nothing_left
from tests.kube.real.manifests import SYSTEM, Installation, host_claim, namespace
from tests.kube.real.plugin import Plugin
from tests.services.s3_server import free_port

SPACE = "ml"

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


@pytest.fixture(scope="session")
def plugin(cluster: Cluster) -> Plugin:
    """Our pods, and a path of the cluster with the reader's files."""
    root = cluster.layout.directory / "cachefs"
    source = root / "source"
    reader.write(source)
    made = Plugin(
        cluster, Installation(cluster.kubelet_directory, root / "state", source, free_port())
    )
    try:
        made.install(root)
    except BaseException:
        print(cluster.report(SYSTEM))
        raise
    return made


@pytest.fixture(scope="session")
def space(cluster: Cluster) -> str:
    """A namespace that enforces restricted pod security, with a claim of the node's files."""
    cluster.apply(namespace(SPACE, "restricted"), *host_claim(SPACE))
    cluster.wait("serviceaccount/default", "create", namespace=SPACE)
    return SPACE
