"""The replies of Google's JSON API: listings, metadata, errors. Pure.

A version of an object is its generation. Its mtime is the time when that generation was written:
`updated` would also change with the metadata.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from cachefs.core import errors
from cachefs.core.errors import BadBody, CacheFSError, OriginError
from cachefs.core.message import DECODE_ERRORS
from cachefs.core.model import Fingerprint, Kind
from connectors.base import clean_etag
from connectors.bounds import UNKNOWN_NS, clamped_ns, parse_size, whole_seconds_ns
from connectors.s3.listing import Listed, Listing

MTIME_PRECISION_NS: Final = 10**6
FIELDS: Final = "name,size,generation,timeCreated"
RENEW: Final = "renew the credentials (gcloud auth application-default login, a new key file)"
_LIMITS: Final = frozenset({"rateLimitExceeded", "userRateLimitExceeded", "quotaExceeded"})


class _Object(msgspec.Struct, rename="camel"):
    name: str = ""
    size: str = ""
    generation: str = ""
    time_created: str = ""


class _List(msgspec.Struct, rename="camel"):
    items: list[_Object] = []
    prefixes: list[str] = []
    next_page_token: str = ""


class _Reason(msgspec.Struct):
    reason: str = ""


class _Error(msgspec.Struct):
    code: int = 0
    message: str = ""
    errors: list[_Reason] = []


class _Refusal(msgspec.Struct):
    error: _Error | str = ""


def parse_listing(body: bytes) -> Listing:
    """See `ObjectStore.parse_listing`."""
    try:
        found = msgspec.json.decode(body, type=_List)
    except msgspec.ValidationError as error:
        raise OriginError(f"the reply is no listing of Google Cloud Storage ({error})") from error
    except DECODE_ERRORS as error:
        raise BadBody(f"the listing is malformed or incomplete ({error})") from error
    if not all(item.name for item in found.items):
        raise BadBody("the listing has an object without a name")
    objects = [Listed(item.name, _fingerprint(item)) for item in found.items]
    return Listing(objects, found.prefixes, found.next_page_token)


def parse_stat(body: bytes) -> Fingerprint | None:
    """See `ObjectStore.parse_stat`."""
    try:
        return _fingerprint(msgspec.json.decode(body, type=_Object))
    except DECODE_ERRORS as error:
        raise BadBody(f"the metadata is malformed or incomplete ({error})") from error


def _fingerprint(item: _Object) -> Fingerprint | None:
    size, generation = parse_size(item.size), clean_etag(item.generation)
    if not generation:
        raise OriginError("an object has no generation: no Google Cloud Storage?")
    if size is None:
        return None
    return Fingerprint(Kind.FILE, size, _mtime_ns(item.time_created), generation)


def _mtime_ns(text: str) -> int:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return UNKNOWN_NS
    return clamped_ns(whole_seconds_ns(time) + time.microsecond // 1000 * MTIME_PRECISION_NS)


def classify(status: int, body: bytes, request_id: str, *, anonymous: bool) -> CacheFSError:
    """Returns the typed error of a reply that is not 2xx."""
    message, reason = _explanation(body)
    details = f"{status} {message}".strip()
    kind, cause, remedy = _verdict(status, reason, details, anonymous)
    return kind(cause, remedy=remedy, request_id=request_id)


def _explanation(body: bytes) -> tuple[str, str]:
    """Returns the message of an error and the first reason."""
    try:
        error = msgspec.json.decode(body, type=_Refusal).error
    except DECODE_ERRORS:
        first = body[:300].decode("utf-8", "replace").strip().splitlines()
        return (first[0] if first and not first[0].startswith("<") else ""), ""
    if isinstance(error, str):
        return error[:300], ""
    message = (error.message.splitlines() or [""])[0][:300]
    return message, error.errors[0].reason if error.errors else ""


_Verdict = tuple[type[CacheFSError], str, str]


def _verdict(status: int, reason: str, details: str, anonymous: bool) -> _Verdict:
    if status == 404:
        return errors.NotFound, "no such object", ""
    if status in (401, 403) and reason not in _LIMITS:
        return _denied(status, details, anonymous)
    if status in (304, 412, 416):
        return errors.Stale, "the object is another version now", ""
    if status == 429 or reason in _LIMITS:
        return errors.Throttled, f"the origin throttles requests ({details})", ""
    if status in (0, 408) or status >= 500:
        return errors.Unavailable, f"the origin failed temporarily ({details})", ""
    if "requester pays" in details:
        remedy = "name the project that pays: --option billing_project=ID"
        return errors.OriginError, "the requester pays for this bucket", remedy
    return errors.OriginError, f"the origin refused ({details})", ""


def _denied(status: int, details: str, anonymous: bool) -> _Verdict:
    if anonymous:
        remedy = "the bucket is not public: use credentials, not --anonymous"
        return errors.AccessDenied, f"access denied ({details})", remedy
    if status == 401:
        return errors.CredentialsMissing, f"the credentials are refused ({details})", RENEW
    remedy = "the caller needs storage.objects.get and storage.objects.list on it"
    return errors.AccessDenied, f"access denied ({details})", remedy
