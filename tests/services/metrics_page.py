"""docs/metrics.md, and what a process exports, in the same words."""

from __future__ import annotations

import http.client
import re
import socket
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| ([^|]*)\|", re.MULTILINE)
OF_BUCKETS = {"le"}

Described = set[tuple[str, str, tuple[str, ...]]]  # name, type, labels


def documented(prefix: str) -> Described:
    """Rows of the table whose names begin so."""
    rows = ROW.findall(PAGE.read_text())
    return {
        (name, kind, tuple(sorted(re.findall(r"`(\w+)`", labels))))
        for name, kind, labels in rows
        if name.startswith(prefix)
    }


def page_of(url: str, headers: dict[str, str]) -> str:
    """What a process says at /metrics now. Raises OSError."""
    request = urllib.request.Request(f"{url}/metrics", headers=headers)
    with urllib.request.urlopen(request, timeout=10) as reply:
        return str(reply.read().decode())


def exposed(url: str, headers: dict[str, str]) -> dict[str, float]:
    """The same by name; over all labels, added. Raises OSError."""
    return _values(page_of(url, headers))


def exposed_at_socket(path: Path) -> dict[str, float]:
    """What a process says at the Unix socket of its page, as `exposed`. Raises OSError."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(str(path))
        connection = http.client.HTTPConnection("localhost", timeout=10)
        connection.sock = sock
        connection.request("GET", "/metrics")
        return _values(connection.getresponse().read().decode())


def _values(text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def exported(text: str, prefix: str) -> Described:
    """Families of a /metrics answer; those with labels are there once they have a value."""
    found: Described = set()
    for family in text_string_to_metric_families(text):
        if family.name.startswith(prefix):
            labels = {label for sample in family.samples for label in sample.labels}
            name = f"{family.name}_total" if family.type == "counter" else family.name
            found.add((name, family.type, tuple(sorted(labels - OF_BUCKETS))))
    return found
