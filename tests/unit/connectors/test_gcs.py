"""Requests and replies of Google Cloud Storage, and its credentials by Google's library."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import google.auth
import google.auth.credentials
import pytest
from google.auth import exceptions

from cachefs.core import errors
from cachefs.core.errors import (
    BadBody,
    BadConfig,
    CacheFSError,
    CredentialsMissing,
    OriginError,
    Unreachable,
)
from cachefs.core.model import Kind, UfsSpec
from connectors.fetch.request import Head
from connectors.gcs.access import GcsCredentials
from connectors.gcs.connector import GcsApi, GcsStore
from connectors.gcs.options import GcsOptions
from connectors.gcs.replies import classify, parse_listing, parse_stat
from connectors.registry import check_options, normalise
from connectors.s3.listing import directory_page
from tests.services.token_server import TokenServer, service_account, token_server

ITEM = {"name": "d/f", "size": "3", "generation": "17", "timeCreated": "2024-05-06T07:08:09.123Z"}
MTIME_NS = 1_714_979_289_123_000_000


def body(**facts: object) -> bytes:
    return json.dumps(facts).encode()


def test_a_page_has_names_and_directories_in_key_order() -> None:
    items = [ITEM, {**ITEM, "name": "d/z"}]
    listing = parse_listing(body(items=items, prefixes=["d/g/"], nextPageToken="more"))
    page = directory_page(listing, "d/")
    assert [entry.name for entry in page.entries] == [b"f", b"g", b"z"]
    assert page.entries[0].fingerprint.etag == "17"
    assert page.entries[0].fingerprint.mtime_ns == MTIME_NS
    assert page.entries[1].fingerprint.kind is Kind.DIRECTORY
    assert listing[1:] == (["d/g/"], "more")
    assert parse_listing(b"{}") == ([], [], "")


def test_a_generation_with_new_metadata_is_the_same_version() -> None:
    assert parse_stat(body(**ITEM, updated="2030-01-01T00:00:00Z")) == parse_stat(body(**ITEM))
    assert parse_stat(body(**{**ITEM, "size": "-1"})) is None
    assert parse_stat(body(**{**ITEM, "timeCreated": "soon"})).mtime_ns == 0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (b"", BadBody),
        (b'{"items": [{"name": "a"', BadBody),
        (b"<html>", BadBody),
        (body(items=[{"size": "1", "generation": "1"}]), BadBody),
        (body(items=[{"name": "a", "size": "1"}]), OriginError),
        (b"[]", OriginError),
        (body(items="none"), OriginError),
        (b'{"x": ' + b"[" * 100_000, BadBody),
    ],
)
def test_a_reply_that_is_no_listing(reply: bytes, kind: type[CacheFSError]) -> None:
    with pytest.raises(kind):
        parse_listing(reply)


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (404, "notFound", errors.NotFound),
        (401, "authError", errors.CredentialsMissing),
        (403, "forbidden", errors.AccessDenied),
        (403, "rateLimitExceeded", errors.Throttled),
        (412, "conditionNotMet", errors.Stale),
        (416, "requestedRangeNotSatisfiable", errors.Stale),
        (429, "rateLimitExceeded", errors.Throttled),
        (408, "", errors.Unavailable),
        (503, "backendError", errors.Unavailable),
        (0, "", errors.Unavailable),
        (400, "invalid", errors.OriginError),
    ],
)
def test_refusals(status: int, reason: str, kind: type[CacheFSError]) -> None:
    error = {"code": status, "message": "why\nnot", "errors": [{"reason": reason}]}
    for reply in (body(error=error), b"<html>oops</html>", b"", b"\xff", body(error="no")):
        found = classify(status, reply, "", anonymous=False)
        if reply.startswith(b'{"error": {'):
            assert type(found) is kind
        assert "\n" not in found.one_line()


def test_who_pays_and_who_may_read() -> None:
    reply = body(error={"code": 400, "message": "Bucket is a requester pays bucket but no user"})
    assert "billing_project" in classify(400, reply, "", anonymous=False).remedy
    assert "not public" in classify(401, b"", "", anonymous=True).remedy


def test_requests_quote_names_and_pin_the_generation() -> None:
    api = GcsApi("https://host", "bkt", {}, "secret-token", "p-1")
    get = api.get("d/ü &?#%", 3, 4, "17")
    assert get.url == (
        "https://host/download/storage/v1/b/bkt/o/d%2F%C3%BC%20%26%3F%23%25?alt=media"
        "&generation=17&userProject=p-1"
    )
    assert "Range: bytes=3-6" in get.headers
    assert "Accept-Encoding: gzip" in get.headers  # else Google decompresses and ignores ranges
    assert "Authorization: Bearer secret-token" in get.headers
    assert "secret-token" not in repr(get) + get.url
    listing = api.list("a/", "to&ken", 1000, "/")
    assert "prefix=a%2F&delimiter=%2F&pageToken=to%26ken" in listing.url


@pytest.mark.parametrize("key", ["a\nb", "a\rb", "k" * 1025])
def test_keys_that_google_has_not(key: str) -> None:
    assert not GcsStore("bkt", GcsOptions(anonymous=True)).can_be_key(key)


def test_request_ids_are_shown() -> None:
    store = GcsStore("bkt", GcsOptions(anonymous=True))
    head = Head(403, {"x-guploader-uploadid": "id-1,id-2"})
    assert "request id id-1)" in store.classify(head, b"").one_line()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("gs://bkt/a/b/", "gs://bkt/a/b"),
        ("gs://bkt", "gs://bkt"),
        ("gs://a.b_c-d/", "gs://a.b_c-d"),
    ],
)
def test_normal_form(url: str, expected: str) -> None:
    assert normalise(url) == expected == normalise(expected)


@pytest.mark.parametrize("url", ["gs://", "gs://B/x", "gs://ab", "gs://bkt//a", "gs://bkt/../a"])
def test_bad_urls(url: str) -> None:
    with pytest.raises(BadConfig):
        normalise(url)


@pytest.mark.parametrize(
    "options",
    [
        {"endpoint_url": "ftp://x"},
        {"endpoint_url": "http://user:pw@host"},
        {"endpoint_url": "http://host:99999"},
        {"anonymous": "perhaps"},
        {"credentials_file": "/nonexistent"},
        {"billing_project": "a b"},
        {"region": "x"},
    ],
)
def test_bad_options(options: dict[str, str]) -> None:
    with pytest.raises(BadConfig) as caught:
        check_options(UfsSpec("gs://bkt", options))
    assert caught.value.remedy
    assert "pw" not in caught.value.one_line()


def test_credentials_are_not_sent_in_clear_to_another_machine() -> None:
    with pytest.raises(BadConfig, match="in clear"):
        GcsStore("bkt", GcsOptions(endpoint_url="http://192.0.2.1"))
    GcsStore("bkt", GcsOptions(endpoint_url="http://192.0.2.1", anonymous=True))


@pytest.fixture
def tokens() -> Iterator[TokenServer]:
    with token_server() as server:
        yield server


@pytest.fixture
def account(tmp_path: Path, tokens: TokenServer) -> str:
    """The key file of a service account."""
    path = tmp_path / "account.json"
    path.write_text(service_account(tokens.url))
    return str(path)


def test_a_token_is_kept_until_it_is_refused(account: str, tokens: TokenServer) -> None:
    credentials = GcsCredentials(GcsOptions(credentials_file=account))
    assert [credentials.token() for _ in range(3)] == ["token-1"] * 3
    credentials.forget()
    assert credentials.token() == "token-2"


def test_the_default_chain_reads_the_named_file(
    account: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", account)
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "p")
    assert GcsCredentials(GcsOptions()).token() == "token-1"


class MetadataServer(google.auth.credentials.Credentials):
    """Credentials of a machine, whose metadata server may be silent."""

    def __init__(self) -> None:
        super().__init__()
        self.is_silent = False
        self.requests = 0

    def refresh(self, request: object) -> None:
        self.requests += 1
        if self.is_silent:
            silence = exceptions.TransportError("the metadata server is unavailable")
            raise exceptions.RefreshError(silence) from silence
        self.token = f"token-{self.requests}"
        self.expiry = datetime.now(UTC).replace(tzinfo=None) + timedelta(hours=1)


def test_a_token_is_used_to_its_end_while_no_new_one_can_be_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metadata, now = MetadataServer(), time.time()
    monkeypatch.setattr(google.auth, "default", lambda **_: (metadata, None))
    credentials = GcsCredentials(GcsOptions(), lambda: now)
    assert credentials.token() == "token-1"
    metadata.is_silent = True
    now += 3500.0
    assert [credentials.token() for _ in range(3)] == ["token-1"] * 3
    assert metadata.requests == 2
    now += 200.0
    with pytest.raises(Unreachable, match="metadata server is unavailable"):
        credentials.token()
    metadata.is_silent = False
    assert credentials.token() == "token-4"


def test_a_workload_identity(tmp_path: Path, tokens: TokenServer) -> None:
    (tmp_path / "subject").write_text("a token of the cluster")
    path = tmp_path / "identity.json"
    facts = {
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/x",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": tokens.url,
        "credential_source": {"file": str(tmp_path / "subject")},
    }
    path.write_text(json.dumps(facts))
    assert GcsCredentials(GcsOptions(credentials_file=str(path))).token() == "token-1"


def test_no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with pytest.raises(CredentialsMissing, match="no Google credentials were found") as caught:
        GcsCredentials(GcsOptions()).token()
    assert "--anonymous" in caught.value.remedy


def test_refused_and_unreachable_token_servers(account: str, tokens: TokenServer) -> None:
    tokens.status = 400
    credentials = GcsCredentials(GcsOptions(credentials_file=account))
    with pytest.raises(CredentialsMissing, match="cannot be renewed"):
        credentials.token()
    tokens.status = 200
    assert credentials.token().startswith("token-")


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"type": "gdch"}', '{"type": "service_account"}']
)
def test_a_file_without_credentials(tmp_path: Path, text: str) -> None:
    path = tmp_path / "key.json"
    path.write_text(text)
    credentials = GcsCredentials(GcsOptions(credentials_file=str(path)))
    with pytest.raises((BadConfig, CredentialsMissing)) as caught:
        credentials.token()
    assert caught.value.remedy
