"""A stat of Google's and Azure's stores is one request for what is usual, and right for what is
not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from cachefs.core.errors import NotFound
from cachefs.core.model import Fingerprint, Kind
from connectors.azure.connector import open_container
from connectors.azure.options import AzureOptions, Place
from connectors.base import Connector
from connectors.fetch.request import ignore_connections
from connectors.gcs.connector import open_bucket
from connectors.gcs.options import GcsOptions
from connectors.s3.listing import Listed, Listing, first_names
from tests.unit.connectors.scripted_s3 import Answer, Request, ScriptedS3, scripted_s3
from tests.unit.connectors.test_azure import FACTS, blob
from tests.unit.connectors.test_azure import listing as azure_listing

EMPTY = FACTS.replace(">3<", ">0<")
HEAD = {"ETag": '"0x8D1"', "Last-Modified": "Mon, 06 May 2024 07:08:09 GMT", "Content-Length": "0"}
FILE = Fingerprint(Kind.FILE, 1, 0, "e")

Open = Callable[[ScriptedS3], Connector]


@pytest.fixture
def plain() -> Iterator[ScriptedS3]:
    with scripted_s3() as running:
        yield running


def gcs(server: ScriptedS3) -> Connector:
    options = GcsOptions(endpoint_url=server.url, anonymous=True)
    return open_bucket("bucket", "", options, ignore_connections)


def azure(server: ScriptedS3) -> Connector:
    options = AzureOptions(endpoint_url=server.url, anonymous=True)
    return open_container(Place("account", "container", ""), options, ignore_connections)


def gcs_item(name: str) -> dict[str, str]:
    return {
        "name": name, "size": "3", "generation": "7", "timeCreated": "2024-05-06T07:08:09.123Z"
    }  # fmt: skip


def gcs_page(*names: str, prefixes: tuple[str, ...] = (), token: str = "") -> Answer:
    page = {"items": [gcs_item(name) for name in names], "prefixes": prefixes}
    return Answer(body=json.dumps({**page, "nextPageToken": token}).encode())


def azure_page(*names: str, prefixes: tuple[str, ...] = (), token: str = "") -> Answer:
    items = [blob(f"<Name>{name}</Name>") for name in names]
    items += [f"<BlobPrefix><Name>{prefix}</Name></BlobPrefix>" for prefix in prefixes]
    return Answer(body=azure_listing(*items, marker=token))


STORES = pytest.mark.parametrize(
    ("open_", "page", "etag"), [(gcs, gcs_page, "7"), (azure, azure_page, "0x8D1")]
)
Page = Callable[..., Answer]


@STORES
def test_a_file_is_one_request(plain: ScriptedS3, open_: Open, page: Page, etag: str) -> None:
    plain.script = lambda request: page("d/f", "d/f0")
    entry = open_(plain).stat(b"d/f")
    assert (entry.name, entry.fingerprint.kind, entry.fingerprint.size) == (b"f", Kind.FILE, 3)
    assert entry.fingerprint.etag == etag
    (request,) = plain.requests
    assert (request.method, "prefix=d%2Ff&" in request.target) == ("GET", True)


@STORES
def test_a_directory_is_one_request(plain: ScriptedS3, open_: Open, page: Page, etag: str) -> None:
    """Also beside a file of its name, which it hides."""
    connector = open_(plain)
    plain.script = lambda request: page(prefixes=("d/",), token="more")
    assert connector.stat(b"d").fingerprint.kind is Kind.DIRECTORY
    plain.script = lambda request: page("d", prefixes=("d/",), token="more")
    assert connector.stat(b"d").fingerprint.kind is Kind.DIRECTORY
    assert len(plain.requests) == 2


@STORES
def test_what_is_absent_has_the_error_of_its_own_request(
    plain: ScriptedS3, open_: Open, page: Page, etag: str
) -> None:
    plain.script = lambda request: page("f0") if "prefix=" in request.target else Answer(404)
    with pytest.raises(NotFound):
        open_(plain).stat(b"f")
    assert len(plain.requests) == 2


@STORES
def test_a_directory_behind_many_names_of_the_same_beginning(
    plain: ScriptedS3, open_: Open, page: Page, etag: str
) -> None:
    def script(request: Request) -> Answer:
        if "prefix=d%2F" in request.target:
            return page("d/f")
        return page("d-0", "d-1", token="more")

    plain.script = script
    assert open_(plain).stat(b"d").fingerprint.kind is Kind.DIRECTORY
    assert len(plain.requests) == 2


def test_a_name_behind_shows_the_end_in_a_store_with_an_order_only(plain: ScriptedS3) -> None:
    """`d0` stands behind `d/` in the order of keys; Azure documents no order."""
    files = [Listed("d", FILE), Listed("d0", FILE)]
    assert first_names(Listing(files, [], "more"), "d") == (FILE, False)
    assert first_names(Listing(files, [], "more"), "d", is_ordered=False) == (FILE, None)
    assert first_names(Listing(files, [], ""), "d", is_ordered=False) == (FILE, False)
    plain.script = lambda request: (
        azure_page() if "prefix=d%2F" in request.target else azure_page("d", "d0", token="more")
    )
    assert azure(plain).stat(b"d").fingerprint.size == 3
    assert len(plain.requests) == 2


@pytest.mark.parametrize("is_folder", [False, True])
def test_an_empty_blob_may_mark_a_directory(plain: ScriptedS3, is_folder: bool) -> None:
    mark = {"x-ms-meta-hdi_isfolder": "true"} if is_folder else {}

    def script(request: Request) -> Answer:
        if request.method == "HEAD":
            return Answer(headers={**HEAD, **mark})
        return Answer(body=azure_listing(blob("<Name>d</Name>", EMPTY)))

    plain.script = script
    kind = azure(plain).stat(b"d").fingerprint.kind
    assert kind is (Kind.DIRECTORY if is_folder else Kind.FILE)


def test_a_caller_who_may_not_list_sees_the_file(plain: ScriptedS3) -> None:
    item = json.dumps(gcs_item("f")).encode()
    plain.script = lambda request: Answer(403) if "prefix=" in request.target else Answer(body=item)
    assert gcs(plain).stat(b"f").fingerprint.size == 3
    assert len(plain.requests) == 2
