"""The origins of a bench, as processes: a real S3 server with a proxy in front of it that shapes
and counts, and a lighter one over the same objects, for benches that must not wait for the origin's
CPU. Each speaks TLS or plain HTTP."""

from __future__ import annotations

import contextlib
import json
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.services.authority import Authority
from tests.services.s3_server import S3Server
from tests.services.versitygw import versitygw

REPOSITORY = Path(__file__).parents[1]
STOP_LIMIT_S = 10.0
TLS, PLAIN = "https", "http"
SCHEMES = {TLS: "TLS", PLAIN: "plain HTTP"}  # as shown in tables; real stores use TLS


class Shaped:
    """A process at `url` that shapes and counts the requests."""

    def __init__(self, process: subprocess.Popen[bytes], trusted: ssl.SSLContext) -> None:
        assert process.stdout is not None
        self.process = process
        self._trusted = trusted
        self.url: str = json.loads(process.stdout.readline())["endpoint_url"]

    def shape(self, rate_bytes_per_s: float | None, latency_s: float) -> None:
        self.post("settings", {"rate_bytes_per_s": rate_bytes_per_s, "latency_s": latency_s})

    def counters(self) -> dict[str, Any]:
        with self._open(f"{self.url}/-/counters") as reply:
            counters: dict[str, Any] = json.load(reply)
            return counters

    def post(self, what: str, body: dict[str, Any]) -> None:
        with self._open(f"{self.url}/-/{what}", json.dumps(body).encode()) as reply:
            reply.read()

    def _open(self, url: str, data: bytes | None = None) -> Any:
        context = self._trusted if url.startswith("https") else None
        return urllib.request.urlopen(url, data=data, timeout=10, context=context)


class Origin(Shaped):
    """`direct_url` is the server, `proxy_url` the proxy in front of it, which shapes and counts.
    Both use one scheme; clients of TLS trust `ca_bundle`."""

    def __init__(
        self, server: S3Server, proxy: subprocess.Popen[bytes], authority: Authority
    ) -> None:
        super().__init__(proxy, authority.trusting())
        self._server = server
        self.authority = authority
        self.ca_bundle = str(authority.bundle)
        self.direct_url = server.endpoint_url
        self.proxy_url = self.url
        self.access_key = server.access_key
        self.secret_key = server.secret_key
        self.region = server.region

    @property
    def credentials(self) -> dict[str, str]:
        return {**self._server.credentials(), "AWS_CA_BUNDLE": self.ca_bundle}

    @property
    def pids(self) -> list[int]:
        return [self.process.pid, *([self._server.pid] if self._server.pid else [])]

    def script(self, **rule: Any) -> None:
        """Adds a rule: `fault={"type": "cut_body", "after_bytes": 1}` and the fields of a rule."""
        self.post("script", rule)

    def reset(self) -> None:
        """Removes faults and the shape, and sets the counters to zero."""
        self.post("clear", {})
        self.post("reset", {})
        self.shape(None, 0.0)


@contextlib.contextmanager
def origins(directory: Path) -> Iterator[dict[str, Origin]]:
    """Serves `directory/objects`, one sub-folder per bucket, until the block ends: a server and a
    proxy for each scheme. The proxies use plain HTTP to one server."""
    authority = Authority(directory)
    by_scheme = {TLS: authority.certificate, PLAIN: None}
    with contextlib.ExitStack() as stack:
        servers = {
            scheme: stack.enter_context(
                versitygw(directory, certificate=found, ca_bundle=authority.bundle)
            )
            for scheme, found in by_scheme.items()
        }
        made = {}
        for scheme, server in servers.items():
            arguments = ["--upstream", servers[PLAIN].endpoint_url, *_secured(authority, scheme)]
            proxy = stack.enter_context(_process("tests.services.proxy", *arguments))
            made[scheme] = Origin(server, proxy, authority)
        yield made


@contextlib.contextmanager
def light_origin(server: Origin, objects: Path, scheme: str) -> Iterator[Shaped]:
    """Serves the objects of a plain HTTP server at a fraction of its CPU: see
    `bench/light_origin.py`."""
    arguments = ["--folder", str(objects), "--upstream", server.direct_url]
    arguments += _secured(server.authority, scheme)
    with _process("bench.light_origin", *arguments) as process:
        yield Shaped(process, server.authority.trusting())


def _secured(authority: Authority, scheme: str) -> list[str]:
    """Returns the arguments of a process that uses this scheme with its clients."""
    return ["--certificate", str(authority.certificate)] if scheme == TLS else []


@contextlib.contextmanager
def _process(module: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a process that ends with its standard input."""
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
