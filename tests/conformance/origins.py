"""The origins that the connector suite runs on: a connector and a way to change what it sees."""

from __future__ import annotations

import concurrent.futures
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec

from cachefs.core.model import UfsSpec
from connectors.base import Connector
from connectors.call_deadline import Deadline
from connectors.compose import decorate, open_connector
from connectors.conformance.origin import Origin
from connectors.meter import Meter
from tests.services.azurite import ACCOUNT, KEY, AzureServer
from tests.services.fake_gcs import GcsServer
from tests.services.memory import MemoryConnector
from tests.services.memory_writer import MemoryUploads, WritableMemory
from tests.services.s3_server import S3Server


class FileOrigin(Origin):
    def __init__(self, root: Path, spec: UfsSpec | None = None) -> None:
        """`spec`: another source that reads this directory."""
        self.root = os.fsencode(root)
        self._mtime_s = 1_700_000_000
        self._spec = spec or UfsSpec(f"file://{root}")
        self.connector = self.reopen()

    def reopen(self) -> Connector:
        return open_connector(self._spec, deadline_s=5, meter=Meter())

    def put(self, path: bytes, data: bytes) -> None:
        where = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(where), exist_ok=True)
        with open(where, "wb") as file:
            file.write(data)
        self._mtime_s += 1  # a clock of our own: two writes in one tick look alike to every kernel
        os.utime(where, (self._mtime_s, self._mtime_s))

    def delete(self, path: bytes) -> None:
        os.unlink(os.path.join(self.root, path))


class FsspecMemoryOrigin(Origin):
    """A folder of fsspec's file system in the memory of this process."""

    def __init__(self, folder: str) -> None:
        self._files = fsspec.filesystem("memory")
        self._root = f"/{folder}"
        self._files.makedirs(self._root)
        self._spec = UfsSpec(f"fsspec+memory://{folder}")
        self.connector = self.reopen()

    def reopen(self) -> Connector:
        return open_connector(self._spec, deadline_s=5, meter=Meter())

    def put(self, path: bytes, data: bytes) -> None:
        name = f"{self._root}/{path.decode()}"
        self._files.makedirs(name.rpartition("/")[0], exist_ok=True)
        self._files.pipe_file(name, data)

    def delete(self, path: bytes) -> None:
        self._files.rm_file(f"{self._root}/{path.decode()}")


class MemoryOrigin(Origin):
    def __init__(self, *, ordered: bool, decorated: bool = False) -> None:
        self.memory = MemoryConnector(ordered=ordered, seed=7)
        self._uploads = MemoryUploads()
        self._decorated = decorated
        self.connector = self.reopen()

    def reopen(self) -> Connector:
        made = WritableMemory(self.memory, self._uploads)
        if not self._decorated:
            return made
        guarded = Deadline(made, attempt_s=5.0)
        return decorate(guarded, deadline_s=5, meter=Meter(), in_flight=4)

    def put(self, path: bytes, data: bytes) -> None:
        self.memory.put(path, data)

    def delete(self, path: bytes) -> None:
        self.memory.delete(path)


class ServerOrigin(Origin):
    """A store behind a network."""

    def put_all(self, files: dict[bytes, bytes]) -> None:
        """Puts 16 at a time, in an order that no listing has."""
        paths = list(files)
        random.Random(len(paths)).shuffle(paths)
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda path: self.put(path, files[path]), paths))


class S3Origin(ServerOrigin):
    """What is below a prefix of a bucket of its own, which also holds what must not be seen."""

    prefix = "data/set"

    def __init__(self, server: S3Server, bucket: str) -> None:
        self.client: Any = server.client()
        self.bucket = bucket
        self.client.create_bucket(Bucket=bucket)
        self.client.put_object(Bucket=bucket, Key=f"{self.prefix}-not-below/x", Body=b"other")
        options = {"endpoint_url": server.endpoint_url}
        if server.ca_bundle:
            options["ca_bundle"] = str(server.ca_bundle)
        self.spec = UfsSpec(f"s3://{bucket}/{self.prefix}", options)
        self.connector = self.reopen()

    def reopen(self) -> Connector:
        return open_connector(self.spec, deadline_s=10, meter=Meter())

    def put(self, path: bytes, data: bytes) -> None:
        self.put_key(path.decode(), data)

    def put_key(self, below: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=f"{self.prefix}/{below}", Body=data)

    def delete(self, path: bytes) -> None:
        self.client.delete_object(Bucket=self.bucket, Key=f"{self.prefix}/{path.decode()}")


class GcsOrigin(ServerOrigin):
    """As `S3Origin`, in a bucket of a fake-gcs-server."""

    prefix = "data/set"

    def __init__(self, server: GcsServer, bucket: str) -> None:
        self.server, self.bucket = server, bucket
        server.make_bucket(bucket)
        server.put(bucket, f"{self.prefix}-not-below/x", b"other")
        options = {"endpoint_url": server.endpoint_url, "anonymous": "true"}
        self.spec = UfsSpec(f"gs://{bucket}/{self.prefix}", options)
        self.connector = self.reopen()

    def reopen(self) -> Connector:
        return open_connector(self.spec, deadline_s=10, meter=Meter())

    def put(self, path: bytes, data: bytes) -> None:
        self.put_key(path.decode(), data)

    def put_key(self, below: str, data: bytes) -> None:
        self.server.put(self.bucket, f"{self.prefix}/{below}", data)

    def delete(self, path: bytes) -> None:
        self.server.delete(self.bucket, f"{self.prefix}/{path.decode()}")


class AzureOrigin(ServerOrigin):
    """As `S3Origin`, in a container of azurite, read with the account's key in a file."""

    prefix = "data/set"

    def __init__(self, server: AzureServer, container: str, key_file: Path) -> None:
        self.server, self.container = server, container
        server.make_container(container)
        server.put(container, f"{self.prefix}-not-below/x", b"other")
        key_file.write_text(f"{KEY}\n")
        options = {"endpoint_url": server.endpoint_url, "account_key_file": str(key_file)}
        self.spec = UfsSpec(f"az://{ACCOUNT}/{container}/{self.prefix}", options)
        self.connector = self.reopen()

    def reopen(self) -> Connector:
        return open_connector(self.spec, deadline_s=10, meter=Meter())

    def put(self, path: bytes, data: bytes) -> None:
        self.put_key(path.decode(), data)

    def put_key(self, below: str, data: bytes) -> None:
        self.server.put(self.container, f"{self.prefix}/{below}", data)

    def delete(self, path: bytes) -> None:
        self.server.delete(self.container, f"{self.prefix}/{path.decode()}")


OriginFactory = Callable[[str], Origin]
