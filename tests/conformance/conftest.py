"""What the conformance suites share: credentials, and empty origins of every kind."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.conformance.origins import FileOrigin, MemoryOrigin, Origin, OriginFactory, S3Origin
from tests.services.versitygw import ACCESS_KEY, SECRET_KEY


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
    s3-versitygw, s3-moto."""
    servers = {"s3-versitygw": "s3", "s3-moto": "moto"}
    numbers = itertools.count(1)
    made: list[Origin] = []
    prefix = request.module.__name__.rpartition(".")[2].replace("_", "-")[-30:]

    def s3(fixture: str) -> Origin:
        request.getfixturevalue("aws_environment")
        server = request.getfixturevalue(fixture)
        return S3Origin(server, f"b-{prefix}-{next(numbers)}")

    def make(kind: str) -> Origin:
        if kind == "file":
            origin: Origin = FileOrigin(tmp_path_factory.mktemp("origin"))
        elif kind in servers:
            origin = s3(servers[kind])
        else:
            origin = MemoryOrigin(
                ordered=kind != "memory-unordered", decorated=kind == "memory-decorated"
            )
        made.append(origin)
        return origin

    yield make
    for origin in made:
        origin.connector.close()
