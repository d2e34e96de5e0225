"""An environment without the machine's own AWS settings, and servers that tests script."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.fetch.connection_pool import ConnectionPool
from tests.services.authority import Authority
from tests.unit.connectors.certificates import make_certificate
from tests.unit.connectors.raw_http import RawServer
from tests.unit.connectors.scripted_s3 import ScriptedS3, scripted_s3


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Only what the test sets: a key in the environment to begin with."""
    for name in list(os.environ):
        if name.startswith("AWS_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "aws-credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return monkeypatch


HTTP_ALONE = {"test_a_proxy_of_the_environment_is_used"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test of `server` runs over both schemes, unless it is about one."""
    if "server" in metafunc.fixturenames:
        alone = metafunc.function.__name__ in HTTP_ALONE
        metafunc.parametrize("scheme", ["http"] if alone else ["http", "https"])


@pytest.fixture
def scheme() -> str:
    """What `server` speaks: see `pytest_generate_tests`."""
    return "http"


@pytest.fixture
def server(scheme: str, authority: Authority, aws: pytest.MonkeyPatch) -> Iterator[ScriptedS3]:
    """Where it speaks TLS the environment names what to trust."""
    if scheme == "https":
        aws.setenv("AWS_CA_BUNDLE", str(authority.bundle))
    with scripted_s3(authority.certificate if scheme == "https" else None) as found:
        yield found


@pytest.fixture(params=["http", "https"])
def raw(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RawServer]:
    tls = request.param == "https"
    server = RawServer(make_certificate(tmp_path / "origin.pem") if tls else None)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def source() -> Iterator[ConnectionPool]:
    made = ConnectionPool()
    yield made
    made.close()
