"""The scheme `s3://`: a bucket of an S3 server, or a prefix of it."""

from __future__ import annotations

import re
from typing import Final

from cachefs.core.model import UfsSpec
from connectors.base import Connector
from connectors.bucket_urls import normal_url
from connectors.event_queue import EventQueue
from connectors.meter import Meter
from connectors.s3.options import OPTIONS, parse_options
from connectors.scheme import Scheme

_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")
_NAMES: Final = "3 to 255 letters, digits, dots and hyphens"


class S3Scheme(Scheme):
    """`s3://bucket/prefix`. Nothing is percent-decoded."""

    options = OPTIONS
    extra = "s3"
    libraries = ("botocore", "lxml", "pycurl", "urllib3")

    def normalise(self, scheme: str, rest: str) -> str:
        return normal_url("s3", scheme, rest, _BUCKET, _NAMES)

    def check_options(self, spec: UfsSpec) -> None:
        super().check_options(spec)
        parse_options(spec.options)

    def open(self, spec: UfsSpec, meter: Meter) -> Connector:
        from connectors.s3.writer import S3Writer

        bucket, _, prefix = spec.url.removeprefix("s3://").partition("/")
        return S3Writer(bucket, prefix, parse_options(spec.options), meter.made)

    def open_queue(self, spec: UfsSpec, url: str) -> EventQueue:
        from connectors.s3.queue import SqsQueue

        return SqsQueue(url, parse_options(spec.options))


SCHEME: Final = S3Scheme()
