"""The origin of a bench: a real S3 server, and the shaping and counting proxy in front of it, both
processes of their own; and a lighter one over the same objects, where the rest is not to wait for
the origin's CPU."""

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


class Shaped:
    """A process that shapes and counts what goes through it, at `url`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self.process = process
        self.url: str = json.loads(process.stdout.readline())["endpoint_url"]

    def shape(self, rate_bytes_per_s: float | None, latency_s: float) -> None:
        self.post("settings", {"rate_bytes_per_s": rate_bytes_per_s, "latency_s": latency_s})

    def counters(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/-/counters", timeout=10) as reply:
            counters: dict[str, Any] = json.load(reply)
            return counters

    def post(self, what: str, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        with urllib.request.urlopen(f"{self.url}/-/{what}", data=data, timeout=10) as reply:
            reply.read()


class Origin(Shaped):
    """`direct_url` is the server, `proxy_url` the proxy in front of it, which shapes and counts."""

    def __init__(self, server: S3Server, proxy: subprocess.Popen[bytes]) -> None:
        super().__init__(proxy)
        self._server = server
        self.direct_url = server.endpoint_url
        self.proxy_url = self.url
        self.access_key = server.access_key
        self.secret_key = server.secret_key
        self.region = server.region

    @property
    def credentials(self) -> dict[str, str]:
        return self._server.credentials()

    @property
    def pids(self) -> list[int]:
        return [self.process.pid, *([self._server.pid] if self._server.pid else [])]

    def script(self, **rule: Any) -> None:
        """`fault={"type": "cut_body", "after_bytes": 1}` and the fields of a rule."""
        self.post("script", rule)

    def reset(self) -> None:
        """No fault, no shape, counters at zero."""
        self.post("clear", {})
        self.post("reset", {})
        self.shape(None, 0.0)


@contextlib.contextmanager
def origin(directory: Path) -> Iterator[Origin]:
    """Serves `directory/objects`, one sub-folder per bucket, until the block ends."""
    with versitygw(directory) as server:
        upstream = ("--upstream", server.endpoint_url)
        with _process("tests.services.proxy", *upstream) as proxy:
            yield Origin(server, proxy)


@contextlib.contextmanager
def light_origin(server: Origin, objects: Path) -> Iterator[Shaped]:
    """The objects of a server, at a fraction of its CPU: see `bench/light_origin.py`."""
    arguments = ("--folder", str(objects), "--upstream", server.direct_url)
    with _process("bench.light_origin", *arguments) as process:
        yield Shaped(process)


@contextlib.contextmanager
def _process(module: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with its standard input."""
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY
    ) as process:
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_LIMIT_S)
            process.kill()
