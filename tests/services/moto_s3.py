"""moto's S3 server, for the keys that a real server on a file system cannot keep (`a//b`, `..`)."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.services.s3_server import S3Server, free_port


@contextlib.contextmanager
def moto_s3(directory: Path) -> Iterator[S3Server]:
    """A server in memory; `directory` gets its log. It accepts every key and secret."""
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    server = S3Server(
        command=[sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        environment={"MOTO_S3_CUSTOM_ENDPOINTS": ""},
        port=port,
        access_key="any",
        secret_key="any",
        region="us-east-1",
        log=directory / "moto.log",
    )
    server.start()
    try:
        yield server
    finally:
        server.stop()
