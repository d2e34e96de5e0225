"""Source URLs and the options of their schemes: normal form and validation.

Imports no adapter, so that the CLI can check a source without the adapter's libraries.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from typing import Final

from cachefs.core.errors import BadConfig
from cachefs.core.model import UfsSpec
from connectors import keys
from connectors.hdfs import location as hdfs_location
from connectors.hdfs.options import OPTIONS as HDFS_OPTIONS
from connectors.hdfs.options import parse_options as parse_hdfs_options
from connectors.s3.options import OPTIONS as S3_OPTIONS
from connectors.s3.options import parse_options

SCHEMES: Final = ("file", "hdfs", "s3")
OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "file": {},
    "hdfs": HDFS_OPTIONS,
    "s3": S3_OPTIONS,
}
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")


def normalise(url: str) -> str:
    """Returns the normal form of a source: `s3://bucket/prefix` or `file:///path`, no trailing '/'.
    A bare absolute path is a file URL; nothing is percent-decoded. Raises BadConfig."""
    if url.startswith("/"):
        url = f"file://{url}"
    scheme, separator, rest = url.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in SCHEMES:
        raise _unknown(url, scheme if separator else "")
    if scheme == "hdfs":
        return hdfs_location.normalise(f"hdfs://{rest}")
    return _normalise_s3(rest, url) if scheme == "s3" else _normalise_file(rest, url)


def check_options(spec: UfsSpec) -> None:
    """Raises BadConfig for an option that the source's scheme does not have, or a bad value."""
    if spec.url.startswith("s3://"):
        parse_options(spec.options)
    elif spec.url.startswith("hdfs://"):
        parse_hdfs_options(spec.options)
    elif spec.options:
        names = ", ".join(sorted(spec.options))
        raise BadConfig(f"a file:// source has no options, got {names}")


def _unknown(url: str, scheme: str) -> BadConfig:
    known = ", ".join(f"{name}://" for name in SCHEMES)
    if not scheme:
        return BadConfig(f"not a source: {url!r}", remedy=f"write it with one of {known}")
    near = difflib.get_close_matches(scheme, SCHEMES, n=1, cutoff=0.4)
    meant = f"did you mean {near[0]}://? " if near else ""
    return BadConfig(f"unknown scheme {scheme}:// in {url!r}", remedy=f"{meant}known: {known}")


def _normalise_s3(rest: str, url: str) -> str:
    bucket, _, prefix = rest.partition("/")
    prefix = prefix.rstrip("/")
    if not _BUCKET.fullmatch(bucket):
        remedy = "3 to 255 letters, digits, dots and hyphens"
        raise BadConfig(f"bad bucket name {bucket!r} in {url!r}", remedy=remedy)
    if not keys.visible_path(prefix.encode("utf-8", "surrogateescape")):
        remedy = "no empty, '.' or '..' segments"
        raise BadConfig(f"bad prefix {prefix!r} in {url!r}", remedy=remedy)
    return f"s3://{bucket}/{prefix}" if prefix else f"s3://{bucket}"


def _normalise_file(rest: str, url: str) -> str:
    path = rest.removeprefix("localhost")
    if not path.startswith("/") or "\0" in path:
        raise BadConfig(f"not an absolute path: {url!r}", remedy="write it as file:///path")
    return f"file:///{os.path.normpath(path).lstrip('/')}"
