"""What is particular to Google's and Azure's stores: credentials, and one line for a bad source."""

from __future__ import annotations

import gzip
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachefs.core.errors import (
    AccessDenied,
    CacheFSError,
    CredentialsMissing,
    NotFound,
    Stale,
    Unreachable,
)
from cachefs.core.model import Kind, UfsSpec
from connectors.azure.sas import sign_container
from connectors.base import Connector
from connectors.conformance.origin import content, entries
from connectors.conformance.reading import BIG
from connectors.meter import Meter
from connectors.registry import open_adapter
from tests.services.authority import Authority
from tests.services.azurite import ACCOUNT, KEY, AzureServer, azurite
from tests.services.fake_gcs import GcsServer, fake_gcs
from tests.services.server_process import free_port

NOW_S = 1_700_000_000.0


def opened(url: str, options: dict[str, str]) -> Connector:
    return open_adapter(UfsSpec(url, options), Meter())


def line_of(connector: Connector, kind: type[CacheFSError]) -> str:
    with pytest.raises(kind) as caught:
        connector.check()
    line = caught.value.one_line()
    assert "\n" not in line
    assert caught.value.remedy
    connector.close()
    return line


@pytest.fixture(scope="module")
def blobs(azure_server: AzureServer) -> AzureServer:
    azure_server.make_container("private")
    azure_server.make_container("public", public=True)
    for container in ("private", "public"):
        azure_server.put(container, "d/f", b"123")
    return azure_server


def test_a_blob_that_marks_a_directory_is_one_in_listings_too(blobs: AzureServer) -> None:
    blobs.make_container("marked", public=True)
    blobs.put("marked", "empty", b"", is_folder=True)
    blobs.put("marked", "file", b"")
    options = {"endpoint_url": blobs.endpoint_url, "anonymous": "true"}
    connector = opened(f"az://{ACCOUNT}/marked", options)
    listed = entries(connector.list_dir(b""))
    assert listed == [connector.stat(b"empty"), connector.stat(b"file")]
    assert [entry.fingerprint.kind for entry in listed] == [Kind.DIRECTORY, Kind.FILE]
    connector.close()


def test_a_bucket_that_does_not_exist(gcs_server: GcsServer) -> None:
    options = {"endpoint_url": gcs_server.endpoint_url, "anonymous": "true"}
    for url in ("gs://no-such-bucket", "gs://no-such-bucket/prefix"):
        line = line_of(opened(url, options), NotFound)
        assert line == "gs://no-such-bucket: no such bucket; check the bucket's name"


def test_a_prefix_with_nothing_or_an_object(gcs_server: GcsServer, blobs: AzureServer) -> None:
    gcs_server.make_bucket("prefixes")
    gcs_server.put("prefixes", "d/f", b"123")
    options = {"endpoint_url": gcs_server.endpoint_url, "anonymous": "true"}
    assert "nothing under this prefix" in line_of(opened("gs://prefixes/x", options), NotFound)
    assert "give the prefix above it" in line_of(opened("gs://prefixes/d/f", options), NotFound)
    options = {"endpoint_url": blobs.endpoint_url, "anonymous": "true"}
    source = f"az://{ACCOUNT}/public"
    assert "nothing under this prefix" in line_of(opened(f"{source}/x", options), NotFound)
    assert "give the prefix above it" in line_of(opened(f"{source}/d/f", options), NotFound)


def test_a_host_that_does_not_answer() -> None:
    port = free_port()
    options = {"endpoint_url": f"http://127.0.0.1:{port}", "anonymous": "true"}
    for connector in (opened("gs://bkt", options), opened("az://account/cont", options)):
        assert "check the endpoint URL" in line_of(connector, Unreachable)


def test_a_server_of_another_kind(blobs: AzureServer, gcs_server: GcsServer) -> None:
    """Each store's server in the place of the other's, and one that speaks no HTTP."""
    mixed = (
        opened("gs://bkt", {"endpoint_url": blobs.endpoint_url, "anonymous": "true"}),
        opened("az://acc/bkt", {"endpoint_url": gcs_server.endpoint_url, "anonymous": "true"}),
    )
    for connector in mixed:
        with pytest.raises(CacheFSError) as caught:
            connector.check()
        assert "\n" not in caught.value.one_line()
        connector.close()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        silent.close()
        options = {"endpoint_url": f"https://127.0.0.1:{port}", "anonymous": "true"}
        line_of(opened("gs://bkt", options), Unreachable)


def test_stored_bytes_are_read_as_they_are(gcs_server: GcsServer) -> None:
    """Google would decompress them, and then ignore the range."""
    gcs_server.make_bucket("compressed")
    data = gzip.compress(b"text " * 1000)
    gcs_server.put("compressed", "d/f", data, encoding="gzip")
    options = {"endpoint_url": gcs_server.endpoint_url, "anonymous": "true"}
    connector = opened("gs://compressed", options)
    assert content(connector, b"d/f") == data
    assert content(connector, b"d/f", 5, 7) == data[5:12]
    connector.close()


def test_a_container_that_does_not_exist(blobs: AzureServer, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY)
    options = {"endpoint_url": blobs.endpoint_url, "account_key_file": str(tmp_path / "key")}
    line = line_of(opened(f"az://{ACCOUNT}/no-such", options), NotFound)
    assert f"az://{ACCOUNT}/no-such: no such container; check" in line


def test_public_containers_need_no_credentials(blobs: AzureServer) -> None:
    options = {"endpoint_url": blobs.endpoint_url, "anonymous": "true"}
    connector = opened(f"az://{ACCOUNT}/public", options)
    connector.check()
    assert [entry.name for entry in entries(connector.list_dir(b""))] == [b"d"]
    assert content(connector, b"d/f") == b"123"
    connector.close()
    with pytest.raises((AccessDenied, NotFound)) as caught:  # azurite hides what is not public
        opened(f"az://{ACCOUNT}/private", options).check()
    assert caught.value.remedy


def test_a_sas_token(blobs: AzureServer, tmp_path: Path) -> None:
    path = tmp_path / "sas"
    options = {"endpoint_url": blobs.endpoint_url, "sas_token_file": str(path)}
    path.touch()
    connector = opened(f"az://{ACCOUNT}/private", options)
    path.write_text(sign_container(ACCOUNT, "private", KEY, time.time(), 60.0))
    assert content(connector, b"d/f") == b"123"
    path.write_text(sign_container(ACCOUNT, "private", KEY, NOW_S, 60.0))
    with pytest.raises(CredentialsMissing) as caught:
        connector.stat(b"d/f")
    line = caught.value.one_line()
    assert "the SAS token has expired" in line
    assert "sig" not in line
    assert caught.value.remedy
    path.write_text(sign_container(ACCOUNT, "private", KEY, time.time(), 60.0))
    assert content(connector, b"d/f") == b"123"  # the new token is used at once
    connector.close()


def test_a_wrong_key(blobs: AzureServer, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("AAAA")
    options = {"endpoint_url": blobs.endpoint_url, "account_key_file": str(tmp_path / "key")}
    connector = opened(f"az://{ACCOUNT}/private", options)
    assert "check the SAS token or the key" in line_of(connector, AccessDenied)


def test_replaced_and_deleted_are_told_apart(gcs_server: GcsServer, blobs: AzureServer) -> None:
    """[S-store-versions] Google answers 404 for a replaced generation, Azure 412 for a deleted
    blob."""
    gcs_server.make_bucket("replaced")
    gcs_options = {"endpoint_url": gcs_server.endpoint_url, "anonymous": "true"}
    azure_options = {"endpoint_url": blobs.endpoint_url, "anonymous": "true"}
    stores = (
        (gcs_server, "replaced", opened("gs://replaced", gcs_options)),
        (blobs, "public", opened(f"az://{ACCOUNT}/public", azure_options)),
    )
    for server, container, connector in stores:
        server.put(container, "r/f", b"old")
        version = connector.stat(b"r/f").fingerprint
        server.put(container, "r/f", b"new")
        with pytest.raises(Stale):
            connector.read(b"r/f", 0, 3, version)
        server.delete(container, "r/f")
        with pytest.raises(NotFound):
            connector.read(b"r/f", 0, 3, version)
        connector.close()


@pytest.fixture(scope="module", params=["gs", "az"])
def tls_source(
    request: pytest.FixtureRequest, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[UfsSpec]:
    """A source with `d/f` and `d/big`, whose server speaks TLS."""
    start = fake_gcs if request.param == "gs" else azurite
    folder = tmp_path_factory.mktemp("tls")
    certificate, bundle = authority.certificate, authority.bundle
    with start(folder, certificate=certificate, ca_bundle=bundle) as server:
        url = "gs://secured"
        if isinstance(server, GcsServer):
            server.make_bucket("secured")
        else:
            server.make_container("secured", public=True)
            url = f"az://{ACCOUNT}/secured"
        server.put("secured", "d/f", b"123")
        server.put("secured", "d/big", BIG)
        options = {"endpoint_url": server.endpoint_url, "ca_bundle": str(bundle)}
        yield UfsSpec(url, {**options, "anonymous": "true"})


def test_over_tls(tls_source: UfsSpec) -> None:
    connector = opened(tls_source.url, tls_source.options)
    connector.check()
    assert content(connector, b"d/f") == b"123"
    assert content(connector, b"d/big") == BIG
    assert content(connector, b"d/big", 7, 3 << 20) == BIG[7 : 7 + (3 << 20)]
    connector.close()


def test_a_certificate_that_is_not_trusted(tls_source: UfsSpec) -> None:
    options = {name: text for name, text in tls_source.options.items() if name != "ca_bundle"}
    assert "--ca-bundle FILE" in line_of(opened(tls_source.url, options), Unreachable)
