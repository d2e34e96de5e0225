"""fake-gcs-server, a server with Google Cloud Storage's JSON API, for tests and benches: on a free
loopback port, in memory, stopped by pid. It checks no token.

`scripts/fake-gcs` builds it once per user; `$CACHEFS_FAKE_GCS` names another one.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

from tests.services.server_process import ServerProcess, free_port

SCRIPT = Path(__file__).parents[2] / "scripts" / "fake-gcs"
ANSWER_LIMIT_S = 30.0


@dataclass(kw_only=True)
class GcsServer(ServerProcess):
    """A process that speaks the JSON API, and what a test changes in its buckets."""

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def make_bucket(self, bucket: str) -> None:
        self._send("POST", "/storage/v1/b?project=p", json.dumps({"name": bucket}).encode())

    def put(self, bucket: str, key: str, data: bytes, encoding: str = "") -> dict[str, Any]:
        """Writes an object and returns its metadata. `encoding`: its Content-Encoding."""
        query = {"uploadType": "media", "name": key}
        if encoding:
            query["contentEncoding"] = encoding
        reply = self._send("POST", f"/upload/storage/v1/b/{bucket}/o?{urlencode(query)}", data)
        made: dict[str, Any] = json.loads(reply)
        return made

    def delete(self, bucket: str, key: str) -> None:
        self._send("DELETE", f"/storage/v1/b/{bucket}/o/{quote(key, safe='')}")

    def _send(
        self, method: str, path: str, data: bytes | None = None, headers: Mapping[str, str] = {}
    ) -> bytes:
        headers = {"Content-Type": "application/octet-stream", **headers}
        request = Request(self.endpoint_url + path, data, headers, method=method)
        with urlopen(request, timeout=ANSWER_LIMIT_S) as reply:
            body: bytes = reply.read()
            return body


@contextlib.contextmanager
def fake_gcs(directory: Path) -> Iterator[GcsServer]:
    """A server without buckets; `directory` gets its log."""
    found = subprocess.run([SCRIPT], capture_output=True, check=True, text=True)
    binary, port = found.stdout.strip(), free_port()
    host = f"127.0.0.1:{port}"
    command = [binary, "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    command += ["-backend", "memory", "-public-host", host, "-external-url", f"http://{host}"]
    command += ["-log-level", "error"]
    log = directory / "fake-gcs.log"
    server = GcsServer(command=command, environment={}, port=port, log=log)
    server.start()
    try:
        yield server
    finally:
        server.stop()
