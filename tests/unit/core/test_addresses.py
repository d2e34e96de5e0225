"""Names of clusters and their processes: one way to write each."""

from __future__ import annotations

import pytest

from cachefs.core.addresses import address_of, is_cluster, master_url, parse_cluster
from cachefs.core.errors import BadConfig


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("cachefs://m", "cachefs://m:19998"),
        ("cachefs://m:1/", "cachefs://m:1"),
        ("CacheFS://m:1//a/b/", "cachefs://m:1/a/b"),
        ("cachefs://[::1]:5/a", "cachefs://[::1]:5/a"),
    ],
)
def test_paths_of_a_cluster(text: str, url: str) -> None:
    assert is_cluster(text)
    assert parse_cluster(text).url == url
    assert parse_cluster(url).url == url


@pytest.mark.parametrize(
    "text", ["cachefs://", "cachefs:///a", "cachefs://m:0/a", "cachefs://m/../a"]
)
def test_bad_paths(text: str) -> None:
    with pytest.raises(BadConfig):
        parse_cluster(text)


@pytest.mark.parametrize(
    ("text", "tls", "url"),
    [
        ("m", False, "http://m:19998"),
        ("m:1", True, "https://m:1"),
        ("http://m:1/", True, "http://m:1"),
        ("https://m", False, "https://m:19998"),
        ("cachefs://m:7/a/b", False, "http://m:7"),
    ],
)
def test_masters(text: str, tls: bool, url: str) -> None:
    assert master_url(text, tls=tls) == url
    assert address_of(url) == url.partition("//")[2]


@pytest.mark.parametrize("text", ["", "ftp://m", "http://m:1/x", "m:0", "a b"])
def test_bad_masters(text: str) -> None:
    with pytest.raises(BadConfig):
        master_url(text, tls=False)
