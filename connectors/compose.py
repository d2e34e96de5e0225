"""Construction of a source's connector from its URL: every scheme, and the order of the decorators
(retry around limit around meter around the adapter)."""

from __future__ import annotations

import time
from collections.abc import Callable

from cachefs.core.errors import Unsupported
from cachefs.core.install import install_command
from cachefs.core.model import UfsSpec
from connectors.base import Connector
from connectors.hdfs.location import parse_url
from connectors.hdfs.options import parse_options as parse_hdfs_options
from connectors.limit import IN_FLIGHT, Limit
from connectors.meter import Meter, Metered
from connectors.retry import Retry
from connectors.s3.options import parse_options
from connectors.urls import OPTIONS, SCHEMES, check_options, normalise

__all__ = ["OPTIONS", "SCHEMES", "check_options", "decorate", "normalise", "open_connector"]


def open_connector(
    spec: UfsSpec,
    *,
    deadline_s: float,
    meter: Meter,
    sleep: Callable[[float], None] = time.sleep,
    rng: Callable[[], float] | None = None,
) -> Connector:
    """Returns the connector of a source, with retries up to `deadline_s` per call. Sends no request
    yet (`check` does). Raises BadConfig, and Unsupported for a missing extra."""
    adapter = _adapter(spec, meter)
    return decorate(adapter, deadline_s=deadline_s, meter=meter, sleep=sleep, rng=rng)


def decorate(
    adapter: Connector,
    *,
    deadline_s: float,
    meter: Meter,
    in_flight: int = IN_FLIGHT,
    sleep: Callable[[float], None] = time.sleep,
    rng: Callable[[], float] | None = None,
) -> Connector:
    """Returns an adapter inside its decorators."""
    limited = Limit(Metered(adapter, meter), in_flight, wait_limit_s=deadline_s)
    return Retry(limited, deadline_s=deadline_s, sleep=sleep, rng=rng)


def _adapter(spec: UfsSpec, meter: Meter) -> Connector:
    url = normalise(spec.url)
    check_options(spec)
    if url.startswith("file://"):
        from connectors.file import FileConnector

        return FileConnector(url.removeprefix("file://"))
    if url.startswith("hdfs://"):
        return _open_hdfs(url, spec)
    return _open_s3(url, spec, meter)


def _open_hdfs(url: str, spec: UfsSpec) -> Connector:
    try:
        from connectors.hdfs.connector import HdfsConnector
    except ModuleNotFoundError as error:
        if error.name != "hdfs_native":
            raise
        raise Unsupported(
            "an hdfs:// source needs the extra hdfs", remedy=install_command("hdfs")
        ) from error
    return HdfsConnector(*parse_url(url), parse_hdfs_options(spec.options))


def _open_s3(url: str, spec: UfsSpec, meter: Meter) -> Connector:
    try:
        from connectors.s3.connector import S3Connector
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("botocore", "pycurl", "urllib3"):
            raise
        raise Unsupported(
            "an s3:// source needs the extra s3", remedy=install_command("s3")
        ) from error
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    return S3Connector(bucket, prefix, parse_options(spec.options), meter.made)
