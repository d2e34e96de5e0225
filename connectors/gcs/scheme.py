"""The scheme `gs://`: a bucket of Google Cloud Storage, or a prefix of it."""

from __future__ import annotations

import re
from typing import Final

from cachefs.core.model import UfsSpec
from connectors.base import Connector
from connectors.bucket_urls import normal_url
from connectors.gcs.options import OPTIONS, parse_options
from connectors.meter import Meter
from connectors.scheme import Scheme

_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_NAMES: Final = "3 to 222 lower-case letters, digits, dots, hyphens and underscores"


class GcsScheme(Scheme):
    """`gs://bucket/prefix`. Nothing is percent-decoded."""

    options = OPTIONS
    extra = "gcs"
    libraries = ("certifi", "google", "pycurl", "requests")

    def normalise(self, scheme: str, rest: str) -> str:
        return normal_url("gs", scheme, rest, _BUCKET, _NAMES)

    def check_options(self, spec: UfsSpec) -> None:
        super().check_options(spec)
        parse_options(spec.options)

    def open(self, spec: UfsSpec, meter: Meter) -> Connector:
        from connectors.gcs.connector import open_bucket

        bucket, _, prefix = spec.url.removeprefix("gs://").partition("/")
        return open_bucket(bucket, prefix, parse_options(spec.options), meter.made)


SCHEME: Final = GcsScheme()
