"""The page of a process without an event loop, and logs as JSON."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import socket
import sys
import tempfile
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge

from cachefs.core.errors import BadConfig
from cachefs.launcher.logs import JsonFormatter, LineFormatter
from cachefs.launcher.metrics_page import MOST_CONNECTIONS, REQUEST_S, MetricsPage


def get(path: Path, page: str) -> tuple[int, str]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(str(path))
        connection = http.client.HTTPConnection("localhost")
        connection.sock = sock
        connection.request("GET", page)
        reply = connection.getresponse()
        return reply.status, reply.read().decode()


def test_a_page_at_a_socket() -> None:
    registry, health = CollectorRegistry(), [True]
    Gauge("mounts", "Mounts.", registry=registry).set(3)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "m.sock")
        first = MetricsPage(f"unix:{path}", registry, lambda: health[0])
        first.start()
        assert "mounts 3.0" in get(path, "/metrics")[1]
        assert get(path, "/healthz") == (200, "ok\n")
        assert get(path, "/other")[0] == 404
        second = MetricsPage(f"unix:{path}", registry, lambda: health[0])
        second.start()
        first.close()  # which leaves the socket of the second one
        health[0] = False
        assert get(path, "/healthz")[0] == 503
        second.close()
        second.close()
        assert list(Path(directory).iterdir()) == []


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_idle_connections_of_strangers_occupy_few_threads_and_lock_nobody_out(kind: str) -> None:
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        path = f"{directory}/m.sock"
        place = f"unix:{path}" if kind == "unix" else "127.0.0.1:0"
        page = MetricsPage(place, CollectorRegistry(), lambda: True)
        page.start()
        stack.callback(page.close)
        family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
        address = path if kind == "unix" else page._server.server_address  # type: ignore[union-attr]

        def connected() -> socket.socket:
            made = stack.enter_context(socket.socket(family))
            made.settimeout(REQUEST_S / 2)
            made.connect(address)
            made.sendall(b"GET /healthz HTTP/1.1\r\n")
            return made

        idle = [connected() for _ in range(2 * MOST_CONNECTIONS)]
        caller = connected()
        caller.sendall(b"\r\n")
        assert b" 200 OK" in caller.recv(1000)
        for ended in idle[:MOST_CONNECTIONS]:
            assert ended.recv(1) == b""


def test_an_address_that_cannot_be_used() -> None:
    page = MetricsPage("unix:/nowhere/m.sock", CollectorRegistry(), lambda: True)
    with pytest.raises(BadConfig, match="nowhere"):
        page.start()
    page.close()


def test_a_log_line_shows_no_control_characters() -> None:
    """A name of an origin writes no line of its own, and nothing to a terminal."""
    try:
        raise ValueError("bad \x1b[2J value")
    except ValueError:
        failure = sys.exc_info()
    name = "a\n2026-11-26 13:00:00,000 ERROR 1 root: \x1b[31m"
    record = logging.LogRecord("a.b", logging.WARNING, "f", 1, "%s is hidden", (name,), failure)
    first, *trace = LineFormatter().format(record).split("\n")
    assert first.endswith("a.b: a\\n2026-11-26 13:00:00,000 ERROR 1 root: \\x1b[31m is hidden")
    assert trace[0].startswith("Traceback")
    assert trace[-1] == "ValueError: bad \\x1b[2J value"


def test_a_log_line_as_json() -> None:
    try:
        raise ValueError("bad\nvalue")
    except ValueError:
        failure = sys.exc_info()
    record = logging.LogRecord("a.b", logging.WARNING, "f", 1, "two\nlines %s", ("x",), failure)
    record.created, record.msecs = 0.25, 250.0
    record.fields = {"path": Path("/a")}
    text = JsonFormatter().format(record)
    assert "\n" not in text
    line = json.loads(text)
    assert "bad\nvalue" in line["fields"].pop("exception")
    assert line == {
        "ts": "1970-01-01T00:00:00.250Z",
        "level": "warning",
        "logger": "a.b",
        "message": "two\nlines x",
        "fields": {"path": "/a"},
    }
