"""The page of the stores says what the adapters declare, and names every option."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachefs.core.model import UfsSpec
from connectors.meter import Meter
from connectors.registry import known_options, open_adapter

PAGE = (Path(__file__).parents[3] / "docs" / "stores.md").read_text()
URLS = {
    "s3": "s3://bucket",
    "gs": "gs://bucket",
    "az": "az://account/container",
    "file": "file:///tmp",
    "hdfs": "hdfs://host:8020/a",
    "fsspec+sftp": "fsspec+sftp://host/a",
    "fsspec+s3": "fsspec+s3://bucket",
    "arrow+file": "arrow+file:///tmp",
    "arrow+s3": "arrow+s3://bucket",
}
UNITS = {"1 s": 10**9, "1 ms": 10**6, "1 us": 10**3, "1 ns": 1}


def rows(heading: str) -> dict[str, list[str]]:
    """The rows of the first table below a heading, by their first cell."""
    table = PAGE.partition(f"## {heading}\n")[2].lstrip().partition("\n\n")[0]
    cells = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return {first.strip("`"): rest for first, *rest in cells}


@pytest.mark.parametrize("name", URLS)
def test_the_table_says_what_is_declared(name: str) -> None:
    options = {"anonymous": "true"} if name in ("s3", "gs", "az") else {}
    adapter = open_adapter(UfsSpec(URLS[name], options), Meter())
    declared = adapter.capabilities
    adapter.close()
    version, refuses, listings, exact = rows("What a store can tell")[name]
    assert version.partition(":")[0] == declared.identity.value
    assert refuses == ("yes" if declared.refuses_other_versions else "no")
    assert listings == ("ordered" if declared.ordered_listings else "unordered")
    assert UNITS[exact] == declared.mtime_precision_ns


@pytest.mark.parametrize(
    ("heading", "url"),
    [
        ("Google Cloud Storage", "gs://b"),
        ("Azure Blob Storage", "az://a/c"),
        ("HDFS", "hdfs://host:8020/a"),
    ],
)
def test_every_option_is_there(heading: str, url: str) -> None:
    assert rows(heading).keys() == known_options(url).keys()
