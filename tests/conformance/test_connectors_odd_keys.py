"""Keys that a file system cannot show: counted, never an error, and never in the way of others."""

from __future__ import annotations

import pytest

from cachefs.core.errors import NotFound
from cachefs.core.model import Kind
from connectors.conformance.origin import content, entries
from tests.conformance.origins import GcsOrigin, OriginFactory, S3Origin

SHOWN = ["plain", "d/f", "e/f", "é", "tab\tkey", "per%cent", "a+b c", "q?#&=", "d/.hidden", "..x"]
CLASH = ["d", "d/e"]  # the object `d` beside d/f; `d/e` is no clash
HIDDEN = ["a//b", "../up", "./here", "e/../x", "e/./y", "f" * 300, "e//", "//", "g/" + "h" * 256]
MARKERS = ["empty/", "d/", "deep/er/"]


@pytest.fixture(scope="module", params=["s3-moto", "gcs"])
def odd(request: pytest.FixtureRequest, new_origin: OriginFactory) -> S3Origin | GcsOrigin:
    origin = new_origin(request.param)
    assert isinstance(origin, S3Origin | GcsOrigin)
    for key in SHOWN + CLASH + HIDDEN:
        origin.put_key(key, key.encode())
    for key in MARKERS:
        origin.put_key(key, b"")
    return origin


def test_a_listing_shows_what_can_be_shown(odd: S3Origin | GcsOrigin) -> None:
    pages = list(odd.connector.list_dir(b""))
    found = {e.name.decode(): e.fingerprint.kind for page in pages for e in page.entries}
    files = {key for key in SHOWN if "/" not in key}
    assert {name for name, kind in found.items() if kind is Kind.FILE} == files
    directories = {name for name, kind in found.items() if kind is Kind.DIRECTORY}
    assert directories == {"a", "d", "e", "g", "empty", "deep"}
    # `d` (a directory wins), `..`, `.`, the long name, and the empty one
    assert sum(page.hidden for page in pages) == 5


def test_what_is_shown_can_be_read(odd: S3Origin | GcsOrigin) -> None:
    for key in SHOWN:
        assert content(odd.connector, key.encode()) == key.encode()


def test_a_marker_makes_an_empty_directory(odd: S3Origin | GcsOrigin) -> None:
    assert odd.connector.stat(b"empty").fingerprint.kind is Kind.DIRECTORY
    assert entries(odd.connector.list_dir(b"empty")) == []
    assert [e.name for e in entries(odd.connector.list_dir(b"deep"))] == [b"er"]
    assert sum(page.hidden for page in odd.connector.list_dir(b"empty")) == 0


def test_the_directory_wins_over_the_object(odd: S3Origin | GcsOrigin) -> None:
    assert odd.connector.stat(b"d").fingerprint.kind is Kind.DIRECTORY


def test_a_directory_of_hidden_keys_is_empty_and_counted(odd: S3Origin | GcsOrigin) -> None:
    assert odd.connector.stat(b"a").fingerprint.kind is Kind.DIRECTORY
    pages = list(odd.connector.list_dir(b"a"))
    assert (entries(pages), sum(page.hidden for page in pages)) == ([], 1)


@pytest.mark.parametrize("key", HIDDEN)
def test_what_is_hidden_cannot_be_named(odd: S3Origin | GcsOrigin, key: str) -> None:
    with pytest.raises(NotFound):
        odd.connector.stat(key.encode())
