"""The origin of a bench: a real S3 server, and the shaping and counting proxy in front of it, both
processes of their own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.services.s3_server import S3Server
from tests.services.versitygw import versitygw

REPOSITORY = Path(__file__).parents[1]
STOP_LIMIT_S = 10.0


class Origin:
    """`direct_url` is the server, `proxy_url` the proxy in front of it."""

    def __init__(self, server: S3Server, proxy: subprocess.Popen[bytes]) -> None:
        assert proxy.stdout is not None
        self._server = server
        self._proxy = proxy
        self.direct_url = server.endpoint_url
        self.proxy_url: str = json.loads(proxy.stdout.readline())["endpoint_url"]
        self.access_key = server.access_key
        self.secret_key = server.secret_key
        self.region = server.region

    @property
    def credentials(self) -> dict[str, str]:
        return self._server.credentials()

    @property
    def pids(self) -> list[int]:
        return [self._proxy.pid, *([self._server.pid] if self._server.pid else [])]

    def shape(self, rate_bytes_per_s: float | None, latency_s: float) -> None:
        self._post("settings", {"rate_bytes_per_s": rate_bytes_per_s, "latency_s": latency_s})

    def script(self, **rule: Any) -> None:
        """`fault={"type": "cut_body", "after_bytes": 1}` and the fields of a rule."""
        self._post("script", rule)

    def counters(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.proxy_url}/-/counters", timeout=10) as reply:
            counters: dict[str, Any] = json.load(reply)
            return counters

    def reset(self) -> None:
        """No fault, no shape, counters at zero."""
        self._post("clear", {})
        self._post("reset", {})
        self.shape(None, 0.0)

    def _post(self, what: str, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        with urllib.request.urlopen(f"{self.proxy_url}/-/{what}", data=data, timeout=10) as reply:
            reply.read()


@contextlib.contextmanager
def origin(directory: Path) -> Iterator[Origin]:
    """Serves `directory/objects`, one sub-folder per bucket, until the block ends."""
    with versitygw(directory) as server:
        command = [sys.executable, "-m", "tests.services.proxy", "--upstream", server.endpoint_url]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY
        ) as proxy:
            try:
                yield Origin(server, proxy)
            finally:
                assert proxy.stdin is not None
                proxy.stdin.close()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    proxy.wait(STOP_LIMIT_S)
                proxy.kill()
