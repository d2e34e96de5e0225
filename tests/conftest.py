"""What all suites share: servers that are started once, for the first test that asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.moto_s3 import moto_s3
from tests.services.s3_server import S3Server
from tests.services.versitygw import versitygw

HISTORIES = [Path(__file__).with_name(name) for name in ("model", "simulator")]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Histories by the hundred run lines that other tests run too: to measure what they cover
    would take twice to five times as long, and find nothing more."""
    for item in items:
        if item.path.parent in HISTORIES:
            item.add_marker(pytest.mark.no_cover)


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with versitygw(tmp_path_factory.mktemp("versitygw")) as server:
        yield server


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server that keeps every key and checks no signature."""
    with moto_s3(tmp_path_factory.mktemp("moto")) as server:
        yield server
