"""A directory of the session's HDFS cluster, for the connector suite."""

from __future__ import annotations

from cachefs.core.model import UfsSpec
from connectors.base import Connector
from connectors.compose import open_connector
from connectors.meter import Meter
from tests.conformance.origins import ServerOrigin
from tests.services.hdfs import HdfsCluster
from tests.services.hdfs_files import write


class HdfsOrigin(ServerOrigin):
    """Its neighbour must not be seen."""

    def __init__(self, cluster: HdfsCluster, name: str) -> None:
        cluster.start()  # what another test killed
        self._client = cluster.client()
        self._root = f"/{name}/data"
        self._client.mkdirs(self._root, create_parent=True)
        write(self._client, f"{self._root}-not-below/x", b"other")
        self._spec = UfsSpec(f"{cluster.url}{self._root}")
        self.connector = self.reopen()

    def reopen(self) -> Connector:
        return open_connector(self._spec, deadline_s=10, meter=Meter())

    def put(self, path: bytes, data: bytes) -> None:
        write(self._client, f"{self._root}/{path.decode()}", data)

    def delete(self, path: bytes) -> None:
        assert self._client.delete(f"{self._root}/{path.decode()}")
