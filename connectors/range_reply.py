"""The reply to a request for a range of an object: its status, encoding, range and length. Pure."""

from __future__ import annotations

from cachefs.core.errors import BadBody, OriginError, Stale
from cachefs.core.model import Fingerprint
from connectors.fetch.request import Head, content_range


def check_object(head: Head, version: Fingerprint, path: str) -> None:
    """Raises OriginError unless the reply has a range of plain bytes, and Stale unless it is of an
    object of this size. `path`: as shown to people."""
    found_range = head.headers.get("content-range", "")
    if not head.is_plain:
        raise OriginError("the reply has an unsupported encoding", path=path)
    if head.status != 206 or not found_range:
        raise OriginError("the server ignores ranges", path=path)
    if found_range.rpartition("/")[2] != str(version.size):
        raise Stale("the object is another version now", path=path)


def check_bytes(head: Head, offset: int, size: int, version: Fingerprint, path: str) -> None:
    """Raises BadBody unless the reply has these bytes of the object."""
    if head.headers.get("content-range", "") != content_range(offset, size, version.size):
        raise BadBody("the reply has another range than requested", path=path)
    length = head.headers.get("content-length", str(size))
    if length != str(size):
        raise BadBody(f"a body of {length} bytes instead of {size}", path=path)
