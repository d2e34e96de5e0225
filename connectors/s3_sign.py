"""Heads of GET requests with their signatures, for many small reads: AWS Signature Version 4 with
what does not change from one request to the next computed once.

Source: "Signature Calculations for the Authorization Header" of the S3 API reference. botocore's
signer, which all other requests use, takes 0.2 ms each; that both sign alike is tested.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import quote

from connectors.s3_access import Keys

_KEY_SAFE: Final = "/-_.~"
_SIGNED_ALWAYS: Final = {"x-amz-content-sha256": "UNSIGNED-PAYLOAD"}


class Signer:
    """For one bucket and one pair of keys. `host` as in the header; `base`: the path of the bucket
    (b"" with virtual-hosted addressing); `more`: headers of every request, in lower case."""

    def __init__(
        self,
        host: str,
        base: str,
        region: str,
        keys: Keys | None,
        more: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._base = base
        self._region = region
        self._keys = keys
        self._clock = clock
        self._headers = {"host": host, **(more or {})}
        if keys is not None:
            self._headers |= _SIGNED_ALWAYS
            if keys.token:
                self._headers["x-amz-security-token"] = keys.token
        self._second = -1
        self._before = self._middle = self._scope = self._date = ""
        self._names = ""
        self._key = b""

    def head(self, key: str, headers: Mapping[str, str]) -> bytes:
        """The first line and all headers; `headers` go with it and are not signed."""
        path = f"{self._base}/{quote(key, safe=_KEY_SAFE)}"
        lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
        if self._keys is None:
            lines += [f"{name}: {value}\r\n" for name, value in self._headers.items()]
            return f"GET {path} HTTP/1.1\r\n{''.join(lines)}\r\n".encode()
        if int(now := self._clock()) != self._second:
            self._prepare(now)
        request = hashlib.sha256(f"GET\n{path}\n{self._middle}".encode()).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{self._date}\n{self._scope}\n{request}"
        signature = hmac.digest(self._key, text.encode(), "sha256").hex()
        return (
            f"GET {path} HTTP/1.1\r\n{self._before}{signature}\r\n{''.join(lines)}\r\n"
        ).encode()

    def _prepare(self, now: float) -> None:
        """What is the same for all requests of one second."""
        assert self._keys is not None
        self._second = int(now)
        self._date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
        day = self._date[:8]
        self._scope = f"{day}/{self._region}/s3/aws4_request"
        signed = dict(sorted({**self._headers, "x-amz-date": self._date}.items()))
        self._names = ";".join(signed)
        listed = "".join(f"{name}:{value}\n" for name, value in signed.items())
        self._middle = f"\n{listed}\n{self._names}\n{signed['x-amz-content-sha256']}"
        key = f"AWS4{self._keys.secret_key}".encode()
        for part in (day, self._region, "s3", "aws4_request"):
            key = hmac.digest(key, part.encode(), "sha256")
        self._key = key
        shown = "".join(f"{name}: {value}\r\n" for name, value in signed.items())
        self._before = (
            f"{shown}Authorization: AWS4-HMAC-SHA256 "
            f"Credential={self._keys.access_key}/{self._scope}, "
            f"SignedHeaders={self._names}, Signature="
        )
