"""Requests and replies of Azure Blob Storage, and its credentials by Azure's library and files."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.core.credentials import AccessToken
from azure.identity import CredentialUnavailableError

from cachefs.core import errors
from cachefs.core.errors import BadBody, BadConfig, CacheFSError, CredentialsMissing, OriginError
from cachefs.core.model import Fingerprint, Kind, UfsSpec
from connectors.azure import access
from connectors.azure.access import Authorization, AzureCredentials, no_identity
from connectors.azure.connector import AzureApi, AzureStore
from connectors.azure.options import AzureOptions, Place
from connectors.azure.replies import classify, parse_listing, parse_stat
from connectors.azure.sas import sign_container
from connectors.fetch.request import Head
from connectors.registry import check_options, normalise
from connectors.s3.listing import Listed, directory_page
from tests.services.token_server import TokenServer, token_server

PLACE = Place("account", "container", "")
SAS = "sv=2021-12-02&sr=c&sp=rl&sig=s3cret%3D"
KEY = base64.b64encode(b"a key").decode()
DATE = "Mon, 06 May 2024 07:08:09 GMT"
FACTS = f"<Last-Modified>{DATE}</Last-Modified><Etag>0x8D1</Etag><Content-Length>3</Content-Length>"


def blob(name: str, facts: str = FACTS) -> str:
    return f"<Blob>{name}<Properties>{facts}</Properties></Blob>"


def listing(*items: str, marker: str = "") -> bytes:
    inner = "".join(items)
    text = f"<EnumerationResults><Blobs>{inner}</Blobs><NextMarker>{marker}</NextMarker>"
    return f"\ufeff<?xml version='1.0' encoding='utf-8'?>{text}</EnumerationResults>".encode()


def test_a_page() -> None:
    found = parse_listing(
        listing(
            blob("<Name>d/f &amp; g</Name>"),
            "<BlobPrefix><Name>d/sub/</Name></BlobPrefix>",
            blob('<Name Encoded="true">d/%EF%BF%BE</Name>'),
            blob("<Name>d/folder</Name>", f"{FACTS}<ResourceType>directory</ResourceType>"),
            blob("<Name>d/huge</Name>", FACTS.replace(">3<", ">-3<")),
            marker="next&amp;page",
        )
    )
    assert [one.key for one in found.objects] == ["d/f & g", "d/\ufffe", "d/huge"]
    expected = Fingerprint(Kind.FILE, 3, 1_714_979_289 * 10**9, "0x8D1")
    assert found.objects[0].fingerprint == expected
    assert found.objects[2].fingerprint is None
    assert found[1:] == (["d/sub/", "d/folder/"], "next&page")


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (b"", BadBody),
        (listing()[:-5], BadBody),
        (b"<html/>", OriginError),
        (b'<!DOCTYPE x [<!ENTITY a "b">]><EnumerationResults/>', OriginError),
        (listing(blob("")), BadBody),
        (listing("<Blob><Name>a</Name></Blob>"), BadBody),
        (listing(blob("<Name>a</Name>", "<Content-Length>1</Content-Length>")), OriginError),
    ],
)
def test_a_reply_that_is_no_listing(reply: bytes, kind: type[CacheFSError]) -> None:
    with pytest.raises(kind):
        parse_listing(reply)


def test_a_page_of_tags_alone_is_refused_before_its_tree_is_built() -> None:
    with pytest.raises(OriginError, match="more than 400000 tags"):
        parse_listing(listing("<a/>" * 400_000))


def test_metadata() -> None:
    headers = {"content-length": "3", "etag": '"0x8D1"', "last-modified": DATE}
    found = parse_stat(Head(200, headers))
    listed = parse_listing(listing(blob("<Name>a</Name>"))).objects[0].fingerprint
    assert found == listed
    folder = parse_stat(Head(200, {**headers, "x-ms-meta-hdi_isfolder": "true"}))
    assert folder is not None
    assert folder.kind is Kind.DIRECTORY
    marked = blob("<Name>d</Name>").replace(
        "</Blob>", "<Metadata><Hdi_isfolder>true</Hdi_isfolder>"
    )
    unmarked = blob("<Name>f</Name>").replace("</Blob>", "<Metadata><a>true</a></Metadata></Blob>")
    assert parse_listing(listing(f"{marked}</Metadata></Blob>", unmarked))[:2] == (
        [Listed("f", found)],
        ["d/"],
    )
    with pytest.raises(BadBody):
        parse_stat(Head(200, {}))


def test_the_marker_of_a_directory_is_no_hidden_name_of_it() -> None:
    marker = blob("<Name>d/</Name>").replace(
        "</Blob>", "<Metadata><hdi_isfolder>true</hdi_isfolder></Metadata></Blob>"
    )
    page = directory_page(parse_listing(listing(marker, blob("<Name>d/f</Name>"))), "d/")
    assert [entry.name for entry in page.entries] == [b"f"]
    assert page.hidden == 0


@pytest.mark.parametrize(
    ("status", "code", "detail", "kind"),
    [
        (404, "BlobNotFound", "", errors.NotFound),
        (404, "ContainerNotFound", "", errors.NotFound),
        (409, "BlobArchived", "", errors.Archived),
        (412, "ConditionNotMet", "", errors.Stale),
        (416, "InvalidRange", "", errors.Stale),
        (403, "AuthenticationFailed", "Signature not valid in the specified time frame", None),
        (403, "AuthenticationFailed", "Signature did not match", None),
        (403, "AuthorizationPermissionMismatch", "", errors.AccessDenied),
        (401, "InvalidAuthenticationInfo", "", None),
        (409, "PublicAccessNotPermitted", "", errors.AccessDenied),
        (403, "AccountIsDisabled", "", errors.AccessDenied),
        (503, "ServerBusy", "", errors.Throttled),
        (500, "OperationTimedOut", "", errors.Unavailable),
        (0, "", "", errors.Unavailable),
        (400, "InvalidUri", "", errors.OriginError),
    ],
)
def test_refusals(status: int, code: str, detail: str, kind: type[CacheFSError] | None) -> None:
    """`None`: CredentialsMissing, so that the credentials are looked for again."""
    text = f"<Error><Code>{code}</Code><Message>why\nnot</Message>"
    text += f"<AuthenticationErrorDetail>{detail}</AuthenticationErrorDetail></Error>"
    by_body = classify(Head(status, {}), text.encode(), anonymous=False)
    by_header = classify(Head(status, {"x-ms-error-code": code}), b"", anonymous=False)
    assert type(by_body) is type(by_header) is (kind or CredentialsMissing)
    assert "\n" not in by_body.one_line()


def test_what_expired_is_said() -> None:
    text = b"<Error><Code>AuthenticationFailed</Code><AuthenticationErrorDetail>Signature not valid"
    text += b" in the specified time frame</AuthenticationErrorDetail></Error>"
    assert "expired" in classify(Head(403, {}), text, anonymous=False).cause
    assert "not public" in classify(Head(401, {}), b"", anonymous=True).remedy


def test_requests_hold_the_condition_and_show_no_secret() -> None:
    api = AzureApi("https://h/c", {}, Authorization(query=SAS))
    get = api.get("d/ü &?#%", 3, 4, "0x8D1")
    assert get.url == f"https://h/c/d/%C3%BC%20%26%3F%23%25?{SAS}"
    assert {'If-Match: "0x8D1"', "Range: bytes=3-6"} <= {*get.headers}
    assert api.list("a/", "", 5, "/").url.endswith(f"&delimiter=%2F&include=metadata&{SAS}")
    assert "s3cret" not in repr(get) + repr(Authorization(query=SAS, header="s3cret"))


@pytest.mark.parametrize("key", ["a\tb", "a\x01", "\x85", "k" * 1025])
def test_keys_that_azure_has_not(key: str) -> None:
    assert not AzureStore(PLACE, AzureOptions(anonymous=True)).can_be_key(key)


def test_normal_form() -> None:
    assert normalise("az://account/con-tainer/a/b/") == "az://account/con-tainer/a/b"
    assert normalise("az://account/$web") == "az://account/$web"
    assert normalise("az://account/container/what?") == "az://account/container/what?"


@pytest.mark.parametrize(
    "url",
    [
        "az://",
        "az://account",
        "az://Account/container",
        "az://account/co--ntainer",
        "az://account/ab",
        "az://account/container//a",
        f"az://account/container?{SAS}",
        f"az://account/container/a?{SAS}",
    ],
)
def test_bad_urls(url: str) -> None:
    with pytest.raises(BadConfig) as caught:
        normalise(url)
    assert "s3cret" not in caught.value.one_line()


@pytest.mark.parametrize(
    "options",
    [
        {"endpoint_url": f"http://h/?{SAS}"},
        {"sas_token_file": "/nonexistent"},
        {"account_key_file": "/nonexistent"},
        {"client_id": "a b"},
        {"sas_token": SAS},
    ],
)
def test_bad_options(options: dict[str, str]) -> None:
    with pytest.raises(BadConfig) as caught:
        check_options(UfsSpec("az://account/container", options))
    assert "s3cret" not in caught.value.one_line()


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No credentials of this machine."""
    for name in ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_KEY", "AZURE_CLIENT_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")  # the Azure CLI
    return monkeypatch


def test_a_sas_token_is_read_again_when_its_file_changes(
    tmp_path: Path, bare: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sas"
    credentials = AzureCredentials(PLACE, AzureOptions(sas_token_file=str(path)))
    for text in (SAS, f"?{SAS}2\n"):
        path.write_text(text)
        assert credentials.current().query == text.strip().lstrip("?")
    bare.setenv("AZURE_STORAGE_SAS_TOKEN", SAS)
    assert AzureCredentials(PLACE, AzureOptions()).current().query == SAS


@pytest.mark.parametrize("text", ["", "\n", "no-signature", "sig=a b", "sig=\u00fc", "sig=a\nb"])
def test_a_file_without_a_sas_token(tmp_path: Path, text: str) -> None:
    path = tmp_path / "sas"
    path.write_text(text)
    with pytest.raises(CredentialsMissing) as caught:
        AzureCredentials(PLACE, AzureOptions(sas_token_file=str(path))).current()
    assert "sig=" not in caught.value.one_line()


def test_a_key_signs_a_token_before_the_last_one_ends(bare: pytest.MonkeyPatch) -> None:
    bare.setenv("AZURE_STORAGE_KEY", KEY)
    now_s = 1_700_000_000.0
    credentials = AzureCredentials(PLACE, AzureOptions(), clock=lambda: now_s)
    first = credentials.current()
    assert "se=2023-11-14T23%3A13%3A20Z" in first.query
    assert KEY not in first.query
    now_s += 3000
    assert credentials.current() is first
    now_s += 400
    assert credentials.current() != first
    bare.setenv("AZURE_STORAGE_KEY", "not-base64!")
    with pytest.raises(CredentialsMissing, match="not in base64"):
        credentials.current()


def test_the_signature_is_of_all_that_the_token_says() -> None:
    one = sign_container("account", "container", KEY, 0.0, 60.0)
    others = {
        sign_container("other", "container", KEY, 0.0, 60.0),
        sign_container("account", "other", KEY, 0.0, 60.0),
        sign_container("account", "container", KEY, 0.0, 61.0),
        sign_container("account", "container", KEY[:-4] + "AAAA", 0.0, 60.0),
    }
    signatures = {text.partition("sig=")[2] for text in (one, *others)}
    assert len(signatures) == 5


@pytest.fixture
def tokens() -> Iterator[TokenServer]:
    with token_server() as server:
        yield server


def test_a_managed_identity(bare: pytest.MonkeyPatch, tokens: TokenServer) -> None:
    bare.setenv("IDENTITY_ENDPOINT", tokens.url)
    bare.setenv("IDENTITY_HEADER", "header")
    credentials = AzureCredentials(PLACE, AzureOptions(client_id="id-1"))
    assert [credentials.current().header for _ in range(3)] == ["Authorization: Bearer token-1"] * 3
    assert "client_id=id-1" in tokens.paths[0]
    credentials.forget()
    assert credentials.current().header == "Authorization: Bearer token-2"


def test_credentials_that_do_not_work_are_told_from_none() -> None:
    """By the message of Azure's library, which has a line for each attempt."""
    attempts = "failed to retrieve a token.\nAttempted credentials:\n\t"
    refused = attempts + "EnvironmentCredential: Authentication failed: AADSTS7000222: expired\nSee"
    none = attempts + "EnvironmentCredential: authentication unavailable.\n\tAzureCliCredential: no"
    found = no_identity(ValueError(refused))
    assert "EnvironmentCredential: Authentication failed: AADSTS7000222: expired" in found.cause
    assert "\n" not in found.one_line()
    assert "no Azure credentials were found" in no_identity(ValueError(none)).cause


def test_no_credentials(bare: pytest.MonkeyPatch, tokens: TokenServer) -> None:
    tokens.status = 400
    bare.setenv("IDENTITY_ENDPOINT", tokens.url)
    bare.setenv("IDENTITY_HEADER", "header")
    with pytest.raises(CredentialsMissing, match="no Azure credentials were found") as caught:
        AzureCredentials(PLACE, AzureOptions()).current()
    assert "--anonymous" in caught.value.remedy


class IdentityService:
    """The chain of a machine, whose identity service may fail."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0
        self.error: Exception | None = None
        self.requests = 0

    def get_token(self, scope: str) -> AccessToken:
        self.requests += 1
        if self.error is not None:
            raise self.error
        return AccessToken(f"token-{self.requests}", int(self.now) + 3600)


@pytest.fixture
def service(bare: pytest.MonkeyPatch) -> IdentityService:
    found = IdentityService()
    bare.setattr(access, "_open_chain", lambda _: found)
    return found


@pytest.mark.parametrize(
    "error",
    [
        CredentialUnavailableError("the identity service is unavailable"),
        FileNotFoundError("the token of the workload identity"),  # not translated by the library
        ValueError("no authority"),
    ],
)
def test_a_token_is_used_to_its_end_while_no_new_one_can_be_had(
    service: IdentityService, error: Exception
) -> None:
    credentials = AzureCredentials(PLACE, AzureOptions(), clock=lambda: service.now)
    first = credentials.current()
    service.error = error
    service.now += 3500.0
    assert [credentials.current() for _ in range(3)] == [first] * 3
    assert service.requests == 2
    service.now += 200.0
    with pytest.raises(CredentialsMissing):
        credentials.current()
    service.error = None
    assert credentials.current().header.endswith("token-4")
