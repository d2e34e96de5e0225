"""The texts in a page of ListObjectsV2. Pure.

lxml parses without the interpreter's lock, and its XPath returns a whole column of texts without an
object for each element. All columns have one text for each object. A document type, an entity and
an encoding other than UTF-8 are refused.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from lxml import etree

from cachefs.core.errors import BadBody, OriginError

_TAGS: Final = ("Key", "LastModified", "ETag", "Size")
_NOT_PLAIN: Final = (b"<!DOCTYPE", b"\0")  # which alone declares entities; UTF-16, which hides it
MOST_TAGS: Final = 400_000  # 5,000 objects have 60 each; a name writes "<" as an entity


class PageTexts(NamedTuple):
    """The texts of a page as they are written, "" for what it lacks. `keys`, `times`, `etags` and
    `sizes` are in step."""

    keys: list[str]
    times: list[str]
    etags: list[str]
    sizes: list[str]
    prefixes: list[str]
    encoding: str
    truncated: str
    token: str


def page_texts(body: bytes) -> PageTexts:
    """Parses a reply. Raises BadBody for an incomplete one, OriginError if it is no listing."""
    check_plain(body)
    try:
        root = etree.fromstring(body, _parser())
    except etree.XMLSyntaxError as error:
        raise BadBody(f"the listing is malformed or incomplete ({error})") from error
    name = etree.QName(root)
    if name.localname == "ListAllMyBucketsResult":
        cause = "the endpoint lists its buckets: it takes no bucket from the host name"
        raise OriginError(cause, remedy="give --addressing-style path")
    if name.localname != "ListBucketResult":
        cause = f"the endpoint sent <{name.localname}> instead of a listing: no S3 server?"
        raise OriginError(cause, remedy="check its URL")
    return _texts(root, name.namespace)


def check_plain(body: bytes) -> None:
    """Raises OriginError for a document that no store sends: the tree of 16 MiB of tags takes half
    a gigabyte, and its parser a second or two."""
    if any(mark in body for mark in _NOT_PLAIN):
        raise OriginError("the listing has a DOCTYPE or a NUL byte")
    if body.count(b"<") > MOST_TAGS:
        raise OriginError(f"the listing has more than {MOST_TAGS} tags")


def _parser() -> Any:
    """Returns a parser for one page: a parser serves one thread at a time. Without comments and
    instructions the text of an element is one node."""
    return etree.XMLParser(
        encoding="utf-8",
        resolve_entities=False,
        no_network=True,
        huge_tree=False,
        remove_comments=True,
        remove_pis=True,
        collect_ids=False,
    )


def _texts(root: Any, namespace: str | None) -> PageTexts:
    names = {"s3": namespace} if namespace else None
    find = etree.XPathElementEvaluator(root, namespaces=names, smart_strings=False)
    at = "s3:" if namespace else ""
    prefixes = find(f"{at}CommonPrefixes/{at}Prefix/text()[1]")
    single = ("EncodingType", "IsTruncated", "NextContinuationToken")
    encoding, truncated, token = (find(f"string({at}{name}[1]/text()[1])") for name in single)
    # At most one text of each object, so a column of full length has exactly one of each.
    columns = [find(f"{at}Contents/{at}{tag}[1]/text()[1]") for tag in _TAGS]
    count = int(find(f"count({at}Contents)"))
    if any(len(column) != count for column in columns):
        columns = _by_object(root, f"{{{namespace}}}" if namespace else "")
    keys, times, etags, sizes = columns
    return PageTexts(keys, times, etags, sizes, prefixes, encoding, truncated, token)


def _by_object(root: Any, ns: str) -> list[list[str]]:
    """Returns the columns of a page in which an object lacks a text."""
    objects = root.findall(f"{ns}Contents")
    return [[item.findtext(f"{ns}{tag}", "") for item in objects] for tag in _TAGS]
