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
    if any(mark in body for mark in _NOT_PLAIN):
        raise OriginError("the listing has a DOCTYPE or a NUL byte")
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
