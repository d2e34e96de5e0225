"""URLs of buckets: `scheme://bucket/prefix`. Pure."""

from __future__ import annotations

import re

from cachefs.core.errors import BadConfig
from connectors import keys


def normal_url(normal: str, scheme: str, rest: str, buckets: re.Pattern[str], names: str) -> str:
    """Returns `scheme://rest` with the scheme `normal`. Raises BadConfig for a bucket that
    `buckets` does not match, with the remedy `names`, and for a prefix that is no path."""
    bucket, _, prefix = rest.partition("/")
    prefix, url = prefix.rstrip("/"), f"{scheme}://{rest}"
    if not buckets.fullmatch(bucket):
        raise BadConfig(f"bad bucket name {bucket!r} in {url!r}", remedy=names)
    if not keys.visible_path(prefix.encode("utf-8", "surrogateescape")):
        remedy = "no empty, '.' or '..' segments"
        raise BadConfig(f"bad prefix {prefix!r} in {url!r}", remedy=remedy)
    return f"{normal}://{bucket}/{prefix}" if prefix else f"{normal}://{bucket}"
