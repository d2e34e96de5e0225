"""The replies of Azure's Blob service: listings, metadata, errors. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote
from xml.etree import ElementTree

from cachefs.core import errors
from cachefs.core.errors import BadBody, CacheFSError, OriginError
from cachefs.core.model import Fingerprint, Kind
from connectors.base import clean_etag
from connectors.bounds import parse_http_date, parse_size
from connectors.fetch.request import Head
from connectors.s3.errors import XML_ERRORS
from connectors.s3.listing import DIRECTORY, Listed, Listing
from connectors.s3.listing_xml import check_plain

RENEW: Final = "make a new SAS token, or log in again (az login)"
CHECK: Final = "check the SAS token or the key, and this machine's clock"
ARCHIVED: Final = "restore it first: az storage blob set-tier --tier Hot"
MAY_READ: Final = (
    "check the SAS token or the key; a caller needs the role Storage Blob Data Reader, or sp=rl"
)
_FOLDER: Final = "hdi_isfolder"  # of the metadata of an empty blob, as Hadoop and AzCopy write it
_GONE: Final = frozenset({"ContainerNotFound", "ContainerBeingDeleted", "ContainerDisabled"})


def parse_listing(body: bytes) -> Listing:
    """See `ObjectStore.parse_listing`."""
    check_plain(body)
    try:
        root = ElementTree.fromstring(body)
    except XML_ERRORS as error:
        raise BadBody(f"the listing is malformed or incomplete ({error})") from error
    if root.tag != "EnumerationResults":
        raise OriginError(f"the endpoint sent <{root.tag}> instead of a listing: no Azure server?")
    objects: list[Listed] = []
    prefixes: list[str] = []
    for item in _blobs(root):
        if item.tag == "BlobPrefix":
            prefixes.append(_name(item))
        elif item.tag == "Blob":
            _add(item, objects, prefixes)
    return Listing(objects, prefixes, root.findtext("NextMarker") or "")


def _blobs(root: ElementTree.Element) -> Iterable[ElementTree.Element]:
    found = root.find("Blobs")
    return () if found is None else found


def _name(item: ElementTree.Element) -> str:
    found = item.find("Name")
    text = "" if found is None else found.text or ""
    if found is None or not text:
        raise BadBody("the listing has a blob without a name")
    return unquote(text) if found.get("Encoded") == "true" else text


def _add(item: ElementTree.Element, objects: list[Listed], prefixes: list[str]) -> None:
    properties = item.find("Properties")
    if properties is None:
        raise BadBody("the listing has a blob without properties")
    facts = {one.tag: one.text or "" for one in properties}
    if facts.get("ResourceType") == "directory" or _marks_directory(item):
        prefixes.append(_name(item).rstrip("/") + "/")
        return
    size, etag = parse_size(facts.get("Content-Length", "")), _etag(facts.get("Etag", ""))
    mtime_ns = parse_http_date(facts.get("Last-Modified", ""))
    fingerprint = None if size is None else Fingerprint(Kind.FILE, size, mtime_ns, etag)
    objects.append(Listed(_name(item), fingerprint))


def _marks_directory(item: ElementTree.Element) -> bool:
    """Returns whether a blob of a flat namespace stands for a directory, as `parse_stat` does."""
    metadata = item.find("Metadata")
    facts = () if metadata is None else metadata
    found = {one.tag.lower(): one.text or "" for one in facts}
    return found.get(_FOLDER, "").lower() == "true"


def _etag(text: str) -> str:
    etag = clean_etag(text)
    if not etag:
        raise OriginError("a blob has no etag: no Azure server?")
    return etag


def parse_stat(head: Head) -> Fingerprint | None:
    """See `ObjectStore.parse_stat`. Hadoop and hierarchical namespaces mark directories."""
    headers = head.headers
    if headers.get(f"x-ms-meta-{_FOLDER}", "").lower() == "true":
        return DIRECTORY
    if "content-length" not in headers:
        raise BadBody("the reply to a HEAD has no Content-Length")
    size, mtime_ns = parse_size(headers["content-length"]), headers.get("last-modified", "")
    if size is None:
        return None
    return Fingerprint(Kind.FILE, size, parse_http_date(mtime_ns), _etag(headers.get("etag", "")))


def classify(head: Head, body: bytes, *, anonymous: bool) -> CacheFSError:
    """Returns the typed error of a reply that is not 2xx. The header has the code of a HEAD, whose
    reply has no body."""
    code, message, detail = _explanation(body)
    code = head.headers.get("x-ms-error-code", "").split(",")[0].strip() or code
    details = f"{head.status} {code}: {message}" if message else f"{head.status} {code}".strip()
    verdict = _by_code(code, detail, details) or _by_status(head.status, details, anonymous)
    kind, cause, remedy = verdict
    request_id = head.headers.get("x-ms-request-id", "").split(",")[0]
    return kind(cause, remedy=remedy, request_id=request_id)


def _explanation(body: bytes) -> tuple[str, str, str]:
    """Returns code, first line of the message, and detail of an error document."""
    try:
        root = ElementTree.fromstring(body) if body else None
    except XML_ERRORS:
        root = None
    if root is None:
        return "", "", ""
    text = {child.tag: (child.text or "").strip() for child in root}
    message = (text.get("Message", "").splitlines() or [""])[0][:300]
    return text.get("Code", ""), message, text.get("AuthenticationErrorDetail", "")


_Verdict = tuple[type[CacheFSError], str, str]


def _by_code(code: str, detail: str, details: str) -> _Verdict | None:
    if code in _GONE:
        return errors.NotFound, "no such container", "check the names of account and container"
    if code == "BlobArchived":
        return errors.Archived, "the blob is archived", ARCHIVED
    if code == "AuthenticationFailed" and ("expir" in detail or "time frame" in detail):
        return errors.CredentialsMissing, "the SAS token has expired, or is not valid yet", RENEW
    if code == "AuthenticationFailed":
        return errors.CredentialsMissing, f"the credentials are refused ({details})", CHECK
    if code == "AccountIsDisabled":
        return errors.AccessDenied, "the account is disabled", "enable it"
    if code == "ServerBusy":
        return errors.Throttled, f"the origin throttles requests ({details})", ""
    return None


def _by_status(status: int, details: str, anonymous: bool) -> _Verdict:
    if status == 404:
        return errors.NotFound, "no such blob", ""
    if status in (401, 403) or "PublicAccessNotPermitted" in details:
        return _denied(status, details, anonymous)
    if status in (412, 416):
        return errors.Stale, "the blob is another version now", ""
    if status == 429:
        return errors.Throttled, f"the origin throttles requests ({details})", ""
    if status in (0, 408) or status >= 500:
        return errors.Unavailable, f"the origin failed temporarily ({details})", ""
    return errors.OriginError, f"the origin refused ({details})", ""


def _denied(status: int, details: str, anonymous: bool) -> _Verdict:
    if anonymous:
        remedy = "the container is not public: use credentials, not --anonymous"
        return errors.AccessDenied, f"access denied ({details})", remedy
    if status == 401:
        return errors.CredentialsMissing, f"the credentials are refused ({details})", RENEW
    return errors.AccessDenied, f"access denied ({details})", MAY_READ
