"""The API server and the master that the tests of this folder share, and a controller."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kube.real.cgroups import PREFIX
from tests.kube.real.cluster import Cluster
from tests.kube.real.leftovers import nothing_left
from tests.kube.real.operator.lab import Lab, Replica
from tests.services.cluster import COMMAND_LIMIT_S
from tests.services.cluster import Cluster as Cache
from tests.services.commands import run_cachefs
from tests.services.environment import environment_of


@pytest.fixture(scope="package")
def lab() -> Iterator[Lab]:
    """Everything but a controller. At its end, nothing of it may be left."""
    run_cachefs(["version"], environment_of("/"), COMMAND_LIMIT_S)  # its process stays
    with nothing_left(), tempfile.TemporaryDirectory(prefix=PREFIX) as directory:
        root = Path(directory)
        with Cluster(root / "c", has_node=False) as control, Cache(root / "cache", {}) as cache:
            cache.start(1)
            made = Lab(control, cache, root)
            try:
                made.prepare()
                yield made
            finally:
                made.close()


@pytest.fixture
def replica(lab: Lab) -> Replica:
    """A controller that acts."""
    running = [one for one in lab.replicas if one.popen.poll() is None]
    made = running[0] if running and running[0].acts else lab.start_acting()
    return made


@pytest.fixture
def space(lab: Lab, replica: Replica, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own; its objects are deleted at its end."""
    name = request.node.name.replace("_", "-")[:60].strip("-")
    yield lab.space(name)
    lab.close_space(name)
    for one in lab.replicas:
        if one.popen.poll() is None and not one.acts:
            one.kill()
