"""Servers whose listings are in another order than Amazon S3's."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest

from cachefs.core.errors import OriginError
from cachefs.core.model import Kind
from connectors.base import Entry
from connectors.s3.connector import S3Connector
from connectors.s3.options import S3Options, parse_options
from connectors.sorted_pages import sorted_pages
from tests.unit.connectors.scripted_s3 import OBJECT, Answer, Request, ScriptedS3

PAGES = (("n1", "n2"), ("n3", "n4"), ("n5",))
DIRECTORIES = ("a", "n3", "z")  # on every page
DOCUMENT = (
    '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    "<IsTruncated>{}</IsTruncated><NextContinuationToken>{}</NextContinuationToken>{}"
    "</ListBucketResult>"
)


def as_s3mock(request: Request) -> Answer:
    """Answers as Adobe S3Mock 5.2.0: every page has all directories, whatever its objects are."""
    query = {name: one for name, (one,) in parse_qs(urlsplit(request.target).query).items()}
    prefix, number = query.get("prefix", ""), int(query.get("continuation-token", 0))
    more = number + 1 < len(PAGES)
    objects = "".join(OBJECT.format(name, 4) for name in PAGES[number] if name.startswith(prefix))
    for name in DIRECTORIES:
        if f"{name}/".startswith(prefix):
            objects += f"<CommonPrefixes><Prefix>{name}/</Prefix></CommonPrefixes>"
    return Answer(body=DOCUMENT.format(str(more).lower(), number + 1, objects).encode())


def as_s3proxy(request: Request) -> Answer:
    """Answers as S3Proxy 4.1.0 over a file system: names are in the order of UTF-16."""
    number = int(request.target.partition("continuation-token=")[2][:1] or 0)
    name = ("\U0001f600", "\uff5e")[number]
    more = str(not number).lower()
    return Answer(body=DOCUMENT.format(more, 1, OBJECT.format(name, 4)).encode())


def connector(server: ScriptedS3, *, is_ordered: bool) -> S3Connector:
    options = S3Options(server.url, region="us-east-1", ordered_listings=is_ordered)
    return S3Connector("bucket", "", options)


@pytest.mark.parametrize("script", [as_s3mock, as_s3proxy])
def test_the_error_names_the_option(
    server: ScriptedS3, script: object, aws: pytest.MonkeyPatch
) -> None:
    server.script = script  # type: ignore[assignment]
    with pytest.raises(OriginError) as caught:
        list(connector(server, is_ordered=True).list_dir(b""))
    cause = "s3://bucket/: the server's listing is not in the order of Amazon S3's"
    remedy = "give the source the option --option ordered_listings=false"
    assert caught.value.one_line() == f"{cause}; {remedy}"


def names(connector: S3Connector) -> list[tuple[str, bool]]:
    """Returns the names of the root, as the master has them."""
    assert not connector.capabilities.ordered_listings
    pages = sorted_pages(connector.list_dir(b""), None)
    found: list[Entry] = [entry for page in pages for entry in page.entries]
    return [(e.name.decode(), e.fingerprint.kind is Kind.DIRECTORY) for e in found]


def test_with_the_option_every_name_is_there_once(
    server: ScriptedS3, aws: pytest.MonkeyPatch
) -> None:
    source = connector(server, is_ordered=False)
    server.script = as_s3mock
    assert names(source) == [
        ("a", True), ("n1", False), ("n2", False), ("n3", True), ("n4", False), ("n5", False),
        ("z", True),
    ]  # fmt: skip
    server.script = as_s3proxy
    assert names(source) == [("\uff5e", False), ("\U0001f600", False)]


def test_the_kind_of_a_name_does_not_depend_on_the_order(
    server: ScriptedS3, aws: pytest.MonkeyPatch
) -> None:
    """The last page of the names that begin with `n` may have the directory."""
    server.script = as_s3mock
    source = connector(server, is_ordered=False)
    for name, kind in ((b"n1", Kind.FILE), (b"n3", Kind.DIRECTORY), (b"z", Kind.DIRECTORY)):
        assert source.stat(name).fingerprint.kind is kind


def test_the_option_is_read() -> None:
    assert parse_options({}).ordered_listings
    assert not parse_options({"ordered_listings": "false"}).ordered_listings
