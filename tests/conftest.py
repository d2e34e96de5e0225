"""What all suites share: servers that are started once, for the first test that asks for them, and
how tests run side by side."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.services.authority import Authority
from tests.services.azurite import AzureServer, azurite
from tests.services.examples import examples
from tests.services.fake_gcs import GcsServer, fake_gcs
from tests.services.hdfs import HdfsCluster, hdfs_cluster
from tests.services.moto_s3 import moto_s3
from tests.services.s3_server import S3Server
from tests.services.sshd import SftpServer, sshd
from tests.services.versitygw import versitygw
from tests.turns import ByGroup

MODELS = Path(__file__).with_name("model")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByGroup:
    return ByGroup(config, log)


def pytest_configure() -> None:
    """Property tests that name no count look at Hypothesis's default count, or its share."""
    os.environ.pop("PYTHONUNBUFFERED", None)  # commands buffer their output as users' do
    usual = hypothesis.settings.default
    # No deadline of an example: other processes may take the CPU for longer than any.
    hypothesis.settings.register_profile(
        "share", usual, max_examples=examples(usual.max_examples), deadline=None
    )
    hypothesis.settings.load_profile("share")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keeps modules and tests, which live until the end, out of every garbage collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of models that run once for each seed, the first run is measured for coverage: with that one
    takes up to five times as long, and the others run the same lines."""
    seen: set[str] = set()
    for item in items:
        if item.path.parent == MODELS:
            test = item.nodeid.partition("[")[0]
            if test in seen:
                item.add_marker(pytest.mark.no_cover)
            seen.add(test)


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with versitygw(tmp_path_factory.mktemp("versitygw")) as server:
        yield server


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    """A cluster of a NameNode and two DataNodes; `tests.turns` runs its tests in one process."""
    with hdfs_cluster(tmp_path_factory.mktemp("hdfs")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Signs the certificates of servers that speak TLS; clients trust `authority.bundle`."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def s3_tls(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[S3Server]:
    """As `s3`, over TLS."""
    with versitygw(
        tmp_path_factory.mktemp("versitygw-tls"),
        certificate=authority.certificate,
        ca_bundle=authority.bundle,
    ) as server:
        yield server


@pytest.fixture(scope="session")
def gcs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    with fake_gcs(tmp_path_factory.mktemp("fake-gcs")) as server:
        yield server


@pytest.fixture(scope="session")
def azure_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    with azurite(tmp_path_factory.mktemp("azurite")) as server:
        yield server


@pytest.fixture(scope="session")
def sftp_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SftpServer]:
    with sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server that keeps every key and checks no signature."""
    with moto_s3(tmp_path_factory.mktemp("moto")) as server:
        yield server
