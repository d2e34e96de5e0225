"""Proxies, trusted certificates and the privacy of credentials, for stores by HTTP."""

from __future__ import annotations

import os

import certifi
import pycurl
import pytest

from cachefs.core.errors import BadConfig
from connectors.objects.network import check_private, curl_options


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


def test_the_proxy_of_the_environment(environment: pytest.MonkeyPatch) -> None:
    assert curl_options("https://store.example", "")[pycurl.PROXY] == ""
    environment.setenv("HTTPS_PROXY", "http://proxy:3128")
    environment.setenv("NO_PROXY", "inside.example")
    assert curl_options("https://store.example", "")[pycurl.PROXY] == "http://proxy:3128"
    for url in ("http://store.example", "https://inside.example"):
        assert curl_options(url, "")[pycurl.PROXY] == ""
    environment.setenv("ALL_PROXY", "http://all:1")
    assert curl_options("http://store.example", "")[pycurl.PROXY] == "http://all:1"


@pytest.mark.parametrize("host", ["127.0.0.1:1", "[::1]:1", "localhost:1"])
def test_no_proxy_gets_what_is_sent_to_this_machine_in_clear(
    environment: pytest.MonkeyPatch, host: str
) -> None:
    environment.setenv("HTTP_PROXY", "http://proxy.example:3128")
    environment.setenv("ALL_PROXY", "http://proxy.example:3128")
    assert curl_options(f"http://{host}/account", "")[pycurl.PROXY] == ""


def test_trusted_certificates() -> None:
    assert curl_options("https://h", "")[pycurl.CAINFO] == certifi.where()
    assert os.path.isfile(certifi.where())
    assert curl_options("https://h", "/my.pem")[pycurl.CAINFO] == "/my.pem"


@pytest.mark.parametrize(
    "url", ["https://h", "http://127.0.0.1:1", "http://[::1]", "http://localhost"]
)
def test_where_credentials_may_go(url: str) -> None:
    check_private(url)


@pytest.mark.parametrize("url", ["http://h", "http://10.0.0.1:9000", "http://localhost.example"])
def test_where_credentials_may_not_go(url: str) -> None:
    with pytest.raises(BadConfig):
        check_private(url)
