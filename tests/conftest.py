"""What all suites share: servers that are started once, for the first test that asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.moto_s3 import moto_s3
from tests.services.s3_server import S3Server
from tests.services.versitygw import versitygw

MODELS = Path(__file__).with_name("model")


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
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server that keeps every key and checks no signature."""
    with moto_s3(tmp_path_factory.mktemp("moto")) as server:
        yield server
