"""A name whose lookup hangs holds up no caller that closes. The test runs in namespaces of its own,
whose only name server never answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.services.namespaces import without_mounts

PROGRAM = """
import socket, sys, threading, time
import pycurl
from connectors.fetch.connection import CurlConnection
from connectors.fetch.connection_pool import ConnectionPool
from connectors.fetch.request import HttpRequest

server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
request = HttpRequest("http://hangs.test/", (), 10, {pycurl.PROXY: ""})
lane = CurlConnection()
lane.begin(request)
assert not lane.wait(lambda: False, time.monotonic() + 0.2), lane.ended
assert b"hangs" in server.recv(512), "the name is looked up"
began_s = time.monotonic()
lane.end()
lane.close()
print(time.monotonic() - began_s)
assert any(one.name == "name-lookup" for one in threading.enumerate()), "nothing was waited for"
"""
LIMIT_S = 1.0


def test_a_lane_is_closed_while_a_name_is_looked_up(tmp_path: Path) -> None:
    """And the process ends at once."""
    (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:8 attempts:1\n")
    (tmp_path / "nsswitch.conf").write_text("hosts: dns\n")
    mounts = [
        f"mount --bind {tmp_path}/{name} /etc/{name}" for name in ("resolv.conf", "nsswitch.conf")
    ]
    script = " && ".join(["ip link set lo up", *mounts, 'exec "$@"'])
    command = without_mounts("sh", "-c", script, "sh", sys.executable, "-c", PROGRAM)
    done = subprocess.run(
        ["unshare", "--net", *command],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < LIMIT_S
