"""HTTP requests by a process of another user, with the standard library alone.

As a program it reads `[[url, method, path, headers, body], ...]` (JSON, bodies in hex) from
standard input, and prints `[[status, body], ...]`; status 0: there is no connection."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

NOBODY = 65534
LIMIT_S = 30


class Request(NamedTuple):
    url: str  # of the server
    method: str
    path: str
    headers: Mapping[str, str] = MappingProxyType({})
    body: bytes = b""


def ask(*requests: Request, uid: int = NOBODY) -> list[tuple[int, bytes]]:
    """Status and body of each answer."""
    asked = json.dumps([[*one[:3], dict(one.headers), one.body.hex()] for one in requests])
    done = subprocess.run(
        [sys.executable, "-I", __file__, str(uid)],
        input=asked,
        capture_output=True,
        text=True,
        timeout=LIMIT_S * 4,
    )
    assert done.returncode == 0, done.stderr
    return [(status, bytes.fromhex(body)) for status, body in json.loads(done.stdout)]


def _answer(
    url: str, method: str, path: str, headers: dict[str, str], body: str
) -> tuple[int, str]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=LIMIT_S)
    try:
        connection.request(method, path, bytes.fromhex(body) or None, headers)
        reply = connection.getresponse()
        return reply.status, reply.read().hex()
    except (OSError, http.client.HTTPException):
        return 0, ""
    finally:
        connection.close()


def main() -> None:
    asked: list[Any] = json.load(sys.stdin)
    "".encode("idna")  # the modules of names are loaded while they can be read
    uid = int(sys.argv[1])
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    print(json.dumps([_answer(*one) for one in asked]))


if __name__ == "__main__":
    main()
