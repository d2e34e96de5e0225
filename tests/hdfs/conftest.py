"""Sources on the session's HDFS cluster."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cachefs.core.model import UfsSpec
from connectors.base import Connector
from connectors.compose import open_connector
from connectors.meter import Meter
from tests.services.hdfs import HdfsCluster
from tests.services.hdfs_files import write

_numbers = itertools.count(1)


class Source:
    """An own directory of the cluster, and a connector of it."""

    def __init__(self, cluster: HdfsCluster, deadline_s: float) -> None:
        self.cluster = cluster
        self.client: Any = cluster.client()
        self.root = f"/source-{next(_numbers)}"
        self.client.mkdirs(self.root)
        self.spec = UfsSpec(f"{cluster.url}{self.root}")
        self.connector: Connector = open_connector(self.spec, deadline_s=deadline_s, meter=Meter())

    def write(self, name: str, data: bytes) -> None:
        write(self.client, f"{self.root}/{name}", data)


@pytest.fixture
def new_source(hdfs: HdfsCluster) -> Iterator[Callable[..., Source]]:
    made: list[Source] = []

    def make(deadline_s: float = 30.0) -> Source:
        hdfs.start()  # what an earlier test killed
        made.append(Source(hdfs, deadline_s))
        return made[-1]

    yield make
    for source in made:
        source.connector.close()


@pytest.fixture
def source(new_source: Callable[..., Source]) -> Source:
    return new_source()
