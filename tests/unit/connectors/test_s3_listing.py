"""What is read from a listing's XML."""

from __future__ import annotations

from urllib.parse import quote_plus
from xml.sax.saxutils import escape

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefs.core.errors import BadBody, OriginError
from cachefs.core.model import Fingerprint, Kind
from connectors.bounds import MAX_TIME_S
from connectors.s3.listing import (
    IDLE_PAGES,
    Listing,
    ListingProgress,
    directory_page,
    parse_listing,
)
from connectors.s3.listing_xml import page_texts

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


TEXTS = st.text(st.sampled_from('ab 7%+-/"&;<é'), max_size=4)
OBJECT = st.lists(st.tuples(st.sampled_from([*GOOD, "Owner", "StorageClass"]), TEXTS), max_size=8)


@given(st.lists(OBJECT, max_size=6), st.sampled_from([NAMESPACE, ""]))
def test_the_texts_of_one_object_stay_together(
    objects: list[list[tuple[str, str]]], namespace: str
) -> None:
    """Objects may lack elements, and have them twice: the first one counts."""
    items = [[("Key", f"k{number}"), *texts] for number, texts in enumerate(objects)]
    body = "".join(
        "<Contents>" + "".join(f"<{tag}>{escape(text)}</{tag}>" for tag, text in item)
        + "</Contents>"
        for item in items
    )  # fmt: skip
    found = page_texts(f"<ListBucketResult{namespace}>{body}</ListBucketResult>".encode())
    first = [dict(reversed(item)) for item in items]
    assert found.keys == [texts["Key"] for texts in first]
    assert found.times == [texts.get("LastModified", "") for texts in first]
    assert found.etags == [texts.get("ETag", "") for texts in first]
    assert found.sizes == [texts.get("Size", "") for texts in first]


def test_a_text_may_be_written_in_parts() -> None:
    odd = {**GOOD, "Key": "a<!-- b -->c<![CDATA[d]]>e<?f g?>&#104;", "Size": "1<![CDATA[2]]>3"}
    [(key, fingerprint)] = parse_listing(document(odd, {**GOOD, "Key": "z"})).objects[:1]
    assert key == "acdeh"
    assert fingerprint is not None
    assert fingerprint.size == 123


@pytest.mark.parametrize("encoding", ["utf-8", "iso-8859-1", "shift_jis", "utf-7", "none"])
def test_every_page_is_utf_8(encoding: str) -> None:
    """Another encoding might hide a document type."""
    declared = f'<?xml version="1.0" encoding="{encoding}"?>'.encode()
    found = parse_listing(declared + document({**GOOD, "Key": "é+ADw-"}))
    assert [key for key, _ in found.objects] == ["é+ADw-"]


def test_what_a_comment_shows_is_no_object() -> None:
    hidden = document(GOOD).decode().partition("<Contents>")[2].partition("</ListBucket")[0]
    assert parse_listing(document(more=f"<!-- <Contents>{hidden} -->")).objects == []


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
        document({**GOOD, "Key": "k&undeclared;"}),
        document({**GOOD, "Key": "kä"}).decode().encode("latin-1"),
        document({**GOOD, "Key": "<x>" * 300 + "</x>" * 300}),
        document({name: value for name, value in GOOD.items() if name != "Key"}),
        document(more="<IsTruncated>true</IsTruncated>"),
    ],
)
def test_a_bad_listing_may_be_asked_again(body: bytes) -> None:
    with pytest.raises(BadBody):
        parse_listing(body)


SIZES = ["many", "", "-1", str(1 << 63), str(1 << 64), "9" * 5000]


@pytest.mark.parametrize("size", SIZES)
def test_an_object_of_an_impossible_size_is_hidden_alone(size: str) -> None:
    odd = {**GOOD, "Key": "d/odd", "Size": size}
    beside = {**odd, "Key": "odd"}
    found = parse_listing(document(GOOD, beside, {**GOOD, "Key": "z", "Size": str((1 << 63) - 1)}))
    below = directory_page(parse_listing(document(odd)), "d/")
    assert (below.entries, below.hidden) == ([], 1)
    page = directory_page(found, "")
    assert [entry.name for entry in page.entries] == [b"k", b"z"]
    assert page.hidden == 1


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("0001-01-01T00:00:00Z", -MAX_TIME_S),
        ("0001-01-01T00:00:00", -MAX_TIME_S),
        ("1600-01-01T00:00:00.000Z", -MAX_TIME_S),
        ("1969-12-31T23:59:59.500Z", -1),
        ("2300-01-01T00:00:00.000Z", MAX_TIME_S),
        ("9999-12-31T23:59:59.999Z", MAX_TIME_S),
        ("9999-12-31T23:59:59.999-14:00", MAX_TIME_S),
        ("0000-00-00T00:00:00Z", 0),
        ("10000-01-01T00:00:00Z", 0),
        ("yesterday", 0),
        ("", 0),
    ],
)
def test_a_time_out_of_bounds_is_clamped(time: str, seconds: int) -> None:
    [(_, fingerprint)] = parse_listing(document({**GOOD, "LastModified": time})).objects
    assert fingerprint == Fingerprint(Kind.FILE, 7, seconds * 10**9, "e")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(fingerprint), type=Fingerprint)


@pytest.mark.parametrize("etag", ["é", "a&#10;b", "x" * 5000])
def test_an_etag_that_no_header_carries_is_none(etag: str) -> None:
    [(_, fingerprint)] = parse_listing(document({**GOOD, "ETag": f"&quot;{etag}&quot;"})).objects
    assert fingerprint is not None
    assert fingerprint.etag == ""


def listing(token: str, *names: str) -> Listing:
    return Listing([], list(names), token)


def test_a_page_that_names_itself_is_refused_at_once() -> None:
    progress = ListingProgress()
    progress.check("", listing("a", "x/"))
    with pytest.raises(OriginError, match="names itself"):
        progress.check("a", listing("a", "y/"))


def test_pages_without_names_may_follow_each_other_for_a_while() -> None:
    """A store answers so while it passes over a million deleted objects, and as slowly as it is."""
    progress = ListingProgress()
    for number in range(3 * IDLE_PAGES):
        names = [f"{number:06d}/"] if number % IDLE_PAGES == 0 else []
        progress.check(str(number), listing(str(number + 1), *names))
    progress.check("the last", listing(""))
    assert IDLE_PAGES * 1000 >= 10_000_000


@pytest.mark.parametrize("names", [(), ("a/",), ("a/", "b/")])
def test_pages_that_bring_nothing_new_have_an_end(names: tuple[str, ...]) -> None:
    progress = ListingProgress()
    progress.check("", listing("0", "b/"))
    for number in range(IDLE_PAGES):
        progress.check(str(number), listing(str(number + 1), *names))
    with pytest.raises(OriginError, match="no end"):
        progress.check("x", listing("y", *names))


ENTITIES = "<!DOCTYPE x [<!ENTITY a 'b'>]><ListBucketResult/>"


@pytest.mark.parametrize(
    "body", [b"<html/>", ENTITIES.encode(), ENTITIES.encode("utf-16"), b"<Error/>"]
)
def test_what_is_no_listing(body: bytes) -> None:
    with pytest.raises(OriginError):
        parse_listing(body)


def test_keys_that_were_not_asked_for() -> None:
    found = parse_listing(document({**GOOD, "Key": "other/k"}))
    with pytest.raises(OriginError, match="not below"):
        directory_page(found, "asked/")
