"""What is read from a listing's XML."""

from __future__ import annotations

from urllib.parse import quote_plus
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefs.core.errors import BadBody, OriginError
from cachefs.core.model import Fingerprint, Kind
from connectors.s3_listing import directory_page, parse_listing, tree_page

NAMESPACE = ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
GOOD = {
    "Key": "k",
    "LastModified": "2026-11-21T09:32:14.999Z",
    "ETag": "&quot;e&quot;",
    "Size": "7",
}


def document(*contents: dict[str, str], more: str = "", namespace: str = NAMESPACE) -> bytes:
    items = "".join(
        "<Contents>" + "".join(f"<{k}>{v}</{k}>" for k, v in item.items()) + "</Contents>"
        for item in contents
    )
    return f"<ListBucketResult{namespace}>{more}{items}</ListBucketResult>".encode()


@pytest.mark.parametrize("namespace", [NAMESPACE, ""])
def test_an_object(namespace: str) -> None:
    found = parse_listing(document(GOOD, namespace=namespace))
    mtime_ns = 1_795_253_534 * 10**9  # whole seconds, rounded down, as a HEAD has it
    assert found.objects == [("k", Fingerprint(Kind.FILE, 7, mtime_ns, "e"))]
    assert (found.prefixes, found.token) == ([], "")


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_keys_come_back_as_they_were(key: str) -> None:
    body = document(
        {**GOOD, "Key": quote_plus(key)},
        more="<EncodingType>url</EncodingType><CommonPrefixes><Prefix>"
        f"{quote_plus(key)}/</Prefix></CommonPrefixes>",
    )
    found = parse_listing(body)
    assert [name for name, _ in found.objects] == [key]
    assert found.prefixes == [key + "/"]


def test_a_server_that_does_not_encode() -> None:
    found = parse_listing(document({**GOOD, "Key": escape("a%20b+c&")}))
    assert [name for name, _ in found.objects] == ["a%20b+c&"]


def test_the_token_of_the_next_page() -> None:
    more = "<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>"
    more_follows, the_end = document(more=more), document(more=more.replace("true", "false"))
    assert [parse_listing(body).token for body in (more_follows, the_end)] == ["t", ""]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not xml",
        document(GOOD)[:-5],
        document({**GOOD, "Size": "many"}),
        document({**GOOD, "LastModified": "yesterday"}),
        document({name: value for name, value in GOOD.items() if name != "Key"}),
        document({name: value for name, value in GOOD.items() if name != "Size"}),
        document(more="<IsTruncated>true</IsTruncated>"),
    ],
)
def test_a_bad_listing_may_be_asked_again(body: bytes) -> None:
    with pytest.raises(BadBody):
        parse_listing(body)


@pytest.mark.parametrize(
    "body", [b"<html/>", b"<!DOCTYPE x [<!ENTITY a 'b'>]><ListBucketResult/>", b"<Error/>"]
)
def test_what_is_no_listing(body: bytes) -> None:
    with pytest.raises(OriginError):
        parse_listing(body)


def test_keys_that_were_not_asked_for() -> None:
    found = parse_listing(document({**GOOD, "Key": "other/k"}))
    for page in (directory_page, tree_page):
        with pytest.raises(OriginError, match="not below"):
            page(found, "asked/")


def test_what_stands_before_a_position_is_dropped() -> None:
    more = "".join(f"<CommonPrefixes><Prefix>p/{name}/</Prefix></CommonPrefixes>" for name in "abc")
    found = parse_listing(document(more=more))
    names = [entry.name for entry in directory_page(found, "p/", b"b/").entries]
    assert names == [b"c"]
