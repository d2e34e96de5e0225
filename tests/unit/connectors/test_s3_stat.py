"""A stat of S3 is one request for what is usual, and right for what is not."""

from __future__ import annotations

import pytest

from cachefs.core.errors import NotFound
from cachefs.core.model import Fingerprint, Kind
from connectors.s3.listing import Listed, Listing, first_names
from tests.unit.connectors.scripted_s3 import Answer, Request, ScriptedS3, error, listing
from tests.unit.connectors.test_s3_faults import connector

FILE = Fingerprint(Kind.FILE, 1, 10**9, "e")


@pytest.mark.parametrize(
    ("keys", "prefixes", "token", "file", "below"),
    [
        (["d"], [], "", True, False),
        (["d", "d0"], [], "more", True, False),  # "d0" comes behind "d/"
        (["d", "d-1"], [], "more", True, None),  # "d-1" comes before it
        (["d"], ["d/"], "", True, True),
        ([], ["d/"], "more", False, True),
        ([], ["d-1/", "d-2/"], "more", False, None),
        ([], [], "more", False, None),  # a page of deleted keys
        ([], [], "", False, False),
        (["d1"], [], "", False, False),
    ],
)
def test_what_the_first_names_show(
    keys: list[str], prefixes: list[str], token: str, file: bool, below: bool | None
) -> None:
    listing = Listing([Listed(key, FILE) for key in keys], prefixes, token)
    assert first_names(listing, "d") == (FILE if file else None, below)


def test_a_file_is_one_request(server: ScriptedS3) -> None:
    server.script = lambda request: listing(("f", 5))
    found = connector(server).stat(b"f").fingerprint
    assert (found.kind, found.size, found.etag) == (Kind.FILE, 5, "e1")
    assert [one.method for one in server.requests] == ["GET"]


def test_a_name_that_the_listing_lacks_has_the_error_of_its_head(server: ScriptedS3) -> None:
    server.script = lambda request: (
        error(404, "NoSuchKey") if request.method == "HEAD" else listing()
    )
    with pytest.raises(NotFound):
        connector(server).stat(b"f")
    assert [one.method for one in server.requests][:2] == ["GET", "HEAD"]


@pytest.mark.parametrize("listed", [listing(), error(400, "KeyTooLongError")])
def test_a_name_that_no_key_has_is_absent(server: ScriptedS3, listed: Answer) -> None:
    """Amazon's servers answer 400, to a HEAD without a reason."""
    server.script = lambda request: Answer(400) if request.method == "HEAD" else listed
    with pytest.raises(NotFound, match="this long"):
        connector(server).stat(b"/".join([b"d" * 250] * 5))


def test_a_directory_behind_many_names_of_the_same_beginning(server: ScriptedS3) -> None:
    """`d-0`, `d-1`, ... come before `d/`: the second listing finds it."""

    def script(request: Request) -> Answer:
        if "prefix=d%2F" in request.target:
            return listing(("d/f", 1))
        return truncated(listing(("d-0", 1), ("d-1", 1)))

    server.script = script
    assert connector(server).stat(b"d").fingerprint.kind is Kind.DIRECTORY
    assert len(server.requests) == 2


def truncated(answer: Answer) -> Answer:
    more = b"<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>"
    answer.body = answer.body.replace(b"<IsTruncated>false</IsTruncated>", more)
    return answer
