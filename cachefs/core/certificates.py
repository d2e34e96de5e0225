"""The expiry of the certificates of a PEM file. Pure: callers read the file.

Python's `ssl` reports the expiry of a peer's certificate only, so this module parses the field (RFC
5280, 4.1).
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
_VERSION: Final = 0xA0  # the tag of the optional first field
_FORMATS: Final = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}  # by tag
_VALIDITY: Final = 3  # its index among the fields, without the version


def expires_at_s(pem: str) -> float:
    """Returns the earliest expiry among the certificates of a chain, as wall time in seconds.
    Raises ValueError for a text that has no certificate or a damaged one."""
    parts = (part.partition(_END) for part in pem.split(_BEGIN)[1:])
    found = [f"{_BEGIN}{body}{_END}" for body, end, _ in parts if end]
    ends = [_not_after(ssl.PEM_cert_to_DER_cert(one)) for one in found]
    if not ends:
        raise ValueError("the file has no certificate")
    return min(ends)


def _not_after(der: bytes) -> float:
    try:
        (_, certificate), *_ = _fields(der)
        (_, signed), *_ = _fields(certificate)
        fields = [field for field in _fields(signed) if field[0] != _VERSION]
        _, (tag, end) = _fields(fields[_VALIDITY][1])
        found = datetime.strptime(end.decode("ascii"), _FORMATS[tag])
    except (LookupError, ValueError) as err:
        raise ValueError(f"not a certificate: {err}") from err
    return found.replace(tzinfo=UTC).timestamp()


def _fields(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields (tag, value) of each element of a DER sequence. Raises IndexError, ValueError."""
    at = 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & 0x80:
            octets = length & 0x7F
            length, at = int.from_bytes(der[at : at + octets], "big"), at + octets
        if at + length > len(der):
            raise ValueError("it is truncated")
        yield tag, der[at : at + length]
        at += length
