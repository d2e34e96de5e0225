"""fake-gcs-server, a server with Google Cloud Storage's JSON API, for tests and benches: on a free
loopback port, in memory, stopped by pid. It checks no token.

`scripts/fake-gcs` builds it once per user; `$CACHEFS_FAKE_GCS` names another one.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from tests.services.server_process import ServerProcess, free_port

SCRIPT = Path(__file__).parents[2] / "scripts" / "fake-gcs"
BYTES = {"Content-Type": "application/octet-stream"}


@dataclass(kw_only=True)
class GcsServer(ServerProcess):
    """A process that speaks the JSON API, and what a test changes in its buckets."""

    @property
    def endpoint_url(self) -> str:
        return self.base_url

    def make_bucket(self, bucket: str) -> None:
        self.send("POST", "/storage/v1/b?project=p", BYTES, json.dumps({"name": bucket}).encode())

    def put(self, bucket: str, key: str, data: bytes, encoding: str = "") -> dict[str, Any]:
        """Writes an object and returns its metadata. `encoding`: its Content-Encoding."""
        query = {"uploadType": "media", "name": key}
        if encoding:
            query["contentEncoding"] = encoding
        path = f"/upload/storage/v1/b/{bucket}/o?{urlencode(query)}"
        made: dict[str, Any] = json.loads(self.send("POST", path, BYTES, data))
        return made

    def delete(self, bucket: str, key: str) -> None:
        self.send("DELETE", f"/storage/v1/b/{bucket}/o/{quote(key, safe='')}", {})


@contextlib.contextmanager
def fake_gcs(
    directory: Path, *, certificate: Path | None = None, ca_bundle: Path | None = None
) -> Iterator[GcsServer]:
    """A server without buckets; `directory` gets its log. With a certificate (PEM with its key) it
    speaks TLS; `ca_bundle` is what its clients have to trust."""
    found = subprocess.run([SCRIPT], capture_output=True, check=True, text=True)
    binary, port = found.stdout.strip(), free_port()
    host, scheme = f"127.0.0.1:{port}", "https" if certificate else "http"
    command = [binary, "-scheme", scheme, "-host", "127.0.0.1", "-port", str(port)]
    command += ["-backend", "memory", "-public-host", host, "-external-url", f"{scheme}://{host}"]
    if certificate:
        command += ["-cert-location", str(certificate), "-private-key-location", str(certificate)]
    command += ["-log-level", "error"]
    log = directory / "fake-gcs.log"
    server = GcsServer(command=command, environment={}, port=port, log=log, ca_bundle=ca_bundle)
    server.start()
    try:
        yield server
    finally:
        server.stop()
