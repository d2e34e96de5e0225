"""The scheme `gs://`: a bucket of Google Cloud Storage, or a prefix of it."""

from __future__ import annotations

import re
from typing import Final

from cachefs.core.errors import BadConfig
from cachefs.core.model import UfsSpec
from connectors import keys
from connectors.base import Connector
from connectors.gcs.options import OPTIONS, parse_options
from connectors.meter import Meter
from connectors.scheme import Scheme

_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")


class GcsScheme(Scheme):
    """`gs://bucket/prefix`. Nothing is percent-decoded."""

    options = OPTIONS
    extra = "gcs"
    libraries = ("certifi", "google", "pycurl", "requests")

    def normalise(self, scheme: str, rest: str) -> str:
        bucket, _, prefix = rest.partition("/")
        prefix, url = prefix.rstrip("/"), f"{scheme}://{rest}"
        if not _BUCKET.fullmatch(bucket):
            remedy = "3 to 222 lower-case letters, digits, dots, hyphens and underscores"
            raise BadConfig(f"bad bucket name {bucket!r} in {url!r}", remedy=remedy)
        if not keys.visible_path(prefix.encode("utf-8", "surrogateescape")):
            remedy = "no empty, '.' or '..' segments"
            raise BadConfig(f"bad prefix {prefix!r} in {url!r}", remedy=remedy)
        return f"gs://{bucket}/{prefix}" if prefix else f"gs://{bucket}"

    def check_options(self, spec: UfsSpec) -> None:
        super().check_options(spec)
        parse_options(spec.options)

    def open(self, spec: UfsSpec, meter: Meter) -> Connector:
        from connectors.gcs.connector import open_bucket

        bucket, _, prefix = spec.url.removeprefix("gs://").partition("/")
        return open_bucket(bucket, prefix, parse_options(spec.options), meter.made)


SCHEME: Final = GcsScheme()
