"""One server process of a test: start, wait until it answers, stop, start again on its port."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import Request, urlopen

START_LIMIT_S = 60.0
STOP_LIMIT_S = 10.0
ANSWER_LIMIT_S = 30.0


FIRST_PORT = 20_000
PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


_given: set[int] = set()


def free_port() -> int:
    """A loopback port that was free a moment ago, and that was not given in this process before:
    its server may not listen yet. It is below those that the kernel gives to connections and to
    servers that name none: they would take it before the server does."""
    below = int(PORT_RANGE.read_text().split()[0])
    chance = random.SystemRandom()  # tests seed the common one
    while True:
        port = chance.randrange(FIRST_PORT, below) if below > FIRST_PORT else 0
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found: int = probe.getsockname()[1]
            if found not in _given:
                _given.add(found)
                return found


@dataclass(kw_only=True)
class ServerProcess:
    """`start` and `stop` may be called again and again: the data stays, as at an origin's outage
    (where the server keeps it on disk)."""

    command: list[str]
    environment: dict[str, str]
    port: int
    log: Path
    ca_bundle: Path | None = None  # it speaks TLS, and clients have to trust this file
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def base_url(self) -> str:
        return f"{'https' if self.ca_bundle else 'http'}://127.0.0.1:{self.port}"

    def send(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        data: bytes | None = None,
    ) -> bytes:
        """The body of the reply to a test's own request. Raises HTTPError if it is not 2xx."""
        trusted = ssl.create_default_context(cafile=self.ca_bundle) if self.ca_bundle else None
        request = Request(self.base_url + path, data, dict(headers), method=method)
        with urlopen(request, timeout=ANSWER_LIMIT_S, context=trusted) as reply:
            body: bytes = reply.read()
            return body

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Returns once the port answers. Raises RuntimeError with the end of the log."""
        if self._process is not None:
            return
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        if not self._answers():
            self.stop()
            tail = self.log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{self.command[0]} did not start on port {self.port}:\n{tail}")

    def _answers(self) -> bool:
        pause = threading.Event()  # a port can only be polled
        for _ in range(int(START_LIMIT_S / 0.05)):
            if self._process is None or self._process.poll() is not None:
                return False
            try:
                socket.create_connection(("127.0.0.1", self.port), 1.0).close()
            except OSError:
                pause.wait(0.05)
            else:
                return True
        return False

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Ends the process; SIGKILL when it does not end by itself."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_LIMIT_S)
