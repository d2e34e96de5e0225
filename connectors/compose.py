"""From a source's URL to a connector: the only place that knows every scheme and the order of the
decorators (retry around limit around meter around the adapter)."""

from __future__ import annotations

import difflib
import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Final

from cachefs.core.errors import BadConfig, Unsupported
from cachefs.core.model import UfsSpec
from connectors import keys
from connectors.base import Connector
from connectors.limit import Limit, Limits
from connectors.meter import Meter, Metered
from connectors.retry import Retry
from connectors.s3_options import OPTIONS as S3_OPTIONS
from connectors.s3_options import parse_options

SCHEMES: Final = ("file", "s3")
OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {"file": {}, "s3": S3_OPTIONS}
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")
_NO_LIMITS: Final = Limits()


def normalise(url: str) -> str:
    """The one way to write a source: `s3://bucket/prefix` or `file:///path`, without a trailing
    '/'. A bare absolute path is a file URL; nothing is percent-decoded. Raises BadConfig."""
    if url.startswith("/"):
        url = f"file://{url}"
    scheme, separator, rest = url.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in SCHEMES:
        raise _unknown(url, scheme if separator else "")
    return _normalise_s3(rest, url) if scheme == "s3" else _normalise_file(rest, url)


def check_options(spec: UfsSpec) -> None:
    """Raises BadConfig for an option that the source's scheme does not have, or a bad value."""
    if spec.url.startswith("s3://"):
        parse_options(spec.options)
    elif spec.options:
        names = ", ".join(sorted(spec.options))
        raise BadConfig(f"a file:// source has no options, got {names}")


def open_connector(
    spec: UfsSpec,
    *,
    deadline_s: float,
    meter: Meter,
    limits: Limits = _NO_LIMITS,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    rng: Callable[[], float] | None = None,
) -> Connector:
    """The connector of a source, with retries up to `deadline_s` per call. Asks the network for
    nothing yet (`check` does). Raises BadConfig, and Unsupported for a missing extra."""
    return decorate(
        _adapter(spec),
        deadline_s=deadline_s,
        meter=meter,
        limits=limits,
        clock=clock,
        sleep=sleep,
        rng=rng,
    )


def decorate(
    adapter: Connector,
    *,
    deadline_s: float,
    meter: Meter,
    limits: Limits = _NO_LIMITS,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    rng: Callable[[], float] | None = None,
) -> Connector:
    """The decorators around an adapter, in their order."""
    metered = Metered(adapter, meter, clock=clock)
    limited = Limit(metered, limits, wait_limit_s=deadline_s, clock=clock, sleep=sleep)
    return Retry(limited, deadline_s=deadline_s, clock=clock, sleep=sleep, rng=rng)


def _adapter(spec: UfsSpec) -> Connector:
    url = normalise(spec.url)
    check_options(spec)
    if url.startswith("file://"):
        from connectors.file import FileConnector

        return FileConnector(url.removeprefix("file://"))
    return _open_s3(url, spec)


def _open_s3(url: str, spec: UfsSpec) -> Connector:
    try:
        from connectors.s3 import S3Connector
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("botocore", "obstore", "urllib3"):
            raise
        raise Unsupported(
            "an s3:// source needs the extra s3", remedy="pip install 'cachefs[s3]'"
        ) from error
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    return S3Connector(bucket, prefix, parse_options(spec.options))


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
