"""What the conformance suites share: credentials, and empty origins of every kind."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachefs.core.model import UfsSpec
from connectors.conformance.origin import Origin
from tests.conformance.hdfs_origin import HdfsOrigin
from tests.conformance.origins import (
    AzureOrigin,
    FileOrigin,
    FsspecMemoryOrigin,
    GcsOrigin,
    MemoryOrigin,
    OriginFactory,
    S3Origin,
)
from tests.conformance.transports import TRANSPORTS, Mounted
from tests.conformance.tree import FILES, plant
from tests.services.s3_server import S3Server
from tests.services.sshd import USER
from tests.services.versitygw import ACCESS_KEY, SECRET_KEY
from tests.unit.fuse.fake_node import FakeNode


@pytest.fixture(scope="module")
def aws_environment() -> Iterator[pytest.MonkeyPatch]:
    """Credentials by the environment, and nothing else of the machine's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        patch.setenv("AWS_CONFIG_FILE", "/dev/null")
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN"):
            patch.delenv(name, raising=False)
        for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_CA_BUNDLE"):
            patch.delenv(name, raising=False)
        yield patch


@pytest.fixture(scope="module")
def new_origin(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OriginFactory]:
    """Makes an empty origin of a kind: file, memory, memory-unordered, memory-decorated,
    s3-versitygw, s3-versitygw-tls, s3-moto, gcs, azure, hdfs, fsspec-local, fsspec-memory,
    fsspec-sftp, arrow-local, arrow-s3."""
    servers = {"s3-versitygw": "s3", "s3-versitygw-tls": "s3_tls", "s3-moto": "moto"}
    numbers = itertools.count(1)
    made: list[Origin] = []
    prefix = request.module.__name__.rpartition(".")[2].replace("_", "-")[-30:]

    def s3(fixture: str) -> Origin:
        request.getfixturevalue("aws_environment")
        server = request.getfixturevalue(fixture)
        return S3Origin(server, f"b-{prefix}-{next(numbers)}")

    def of_library(kind: str, root: Path) -> Origin:
        if kind == "fsspec-memory":
            return FsspecMemoryOrigin(f"{prefix}-{next(numbers)}")
        if kind == "fsspec-sftp":
            server = request.getfixturevalue("sftp_server")
            url = f"fsspec+sftp://{USER}@127.0.0.1{root}"
            return FileOrigin(root, UfsSpec(url, server.options))
        if kind == "arrow-s3":
            return arrow_s3(request.getfixturevalue("s3"))
        return FileOrigin(root, UfsSpec(f"{kind.partition('-')[0]}+file://{root}"))

    def arrow_s3(server: S3Server) -> Origin:
        request.getfixturevalue("aws_environment")
        bucket = f"b-{prefix}-{next(numbers)}"
        server.client().create_bucket(Bucket=bucket)
        options = {"endpoint_url": server.endpoint_url, "region": server.region}
        objects = server.log.parent / "objects" / bucket
        return FileOrigin(objects, UfsSpec(f"arrow+s3://{bucket}", options))

    def make(kind: str) -> Origin:
        if kind == "file":
            origin: Origin = FileOrigin(tmp_path_factory.mktemp("origin"))
        elif kind in servers:
            origin = s3(servers[kind])
        elif kind.startswith(("fsspec", "arrow")):
            root = tmp_path_factory.mktemp("origin")
            origin = of_library(kind, root)
        elif kind == "hdfs":
            cluster = request.getfixturevalue("hdfs")
            origin = HdfsOrigin(cluster, f"{prefix}-{next(numbers)}")
        elif kind == "gcs":
            server = request.getfixturevalue("gcs_server")
            origin = GcsOrigin(server, f"b-{prefix}-{next(numbers)}")
        elif kind == "azure":
            server = request.getfixturevalue("azure_server")
            key_file = tmp_path_factory.mktemp("azure") / "key"
            origin = AzureOrigin(server, f"b-{prefix}-{next(numbers)}", key_file)
        else:
            origin = MemoryOrigin(
                ordered=kind != "memory-unordered", decorated=kind == "memory-decorated"
            )
        made.append(origin)
        return origin

    yield make
    for origin in made:
        origin.connector.close()


@pytest.fixture
def rng() -> random.Random:
    """Its seed shows when the test fails."""
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.fixture(scope="module", params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@contextlib.contextmanager
def node_for(root: Path, transport: str) -> Iterator[Mounted]:
    with FakeNode() as node:
        mounted = Mounted(node, root, transport)
        node.listen(root / "node.sock")
        try:
            yield mounted
        finally:
            mounted.clean_up()


@pytest.fixture
def idle(tmp_path: Path, transport: str) -> Iterator[Mounted]:
    """A node that listens, nothing mounted yet."""
    with node_for(tmp_path, transport) as mounted:
        yield mounted


@pytest.fixture
def mounted(idle: Mounted) -> Mounted:
    """A small tree of the test's own, to change."""
    idle.node.add_dir("d")
    idle.node.add_file("d/warm", FILES["warm"])
    idle.node.add_file("d/cold", FILES["cold"], published=False)
    idle.node.add_file("d/partial", FILES["partial"], published=False)
    assert idle.start().failure is None
    return idle


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory, transport: str) -> Iterator[Mounted]:
    """A mount that nobody changes. Its log must stay calm."""
    with node_for(tmp_path_factory.mktemp("tree"), transport) as mounted:
        plant(mounted.node)
        assert mounted.start(file_mode=0o755).failure is None
        yield mounted
        assert mounted.complaints() == []
