"""A name whose lookup hangs holds up no caller that closes, and no other download. The tests run in
namespaces of their own, whose only name server never answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.services.namespaces import without_mounts

LANE = """
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
DOWNLOADS = """
import os, select, socket, time
import pycurl
from connectors.download.downloader import Downloader, Target
from connectors.fetch.request import HttpRequest

server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
downloader, reports = Downloader(), []

def wait(holds):
    while not holds():
        assert select.select([downloader.fileno()], [], [], 10)[0]
        downloader.turn()

def start(url):
    get = HttpRequest(url, (), 10, {pycurl.PROXY: ""})
    target = Target(os.memfd_create("file"), 0, 0)
    id = downloader.start(get, target, lambda report: reports.append(report))
    downloader.turn()
    return id

wait(lambda: downloader.is_ready)
id = start("http://hangs.test/")
assert b"hangs" in server.recv(512), "the name is looked up"
began_s = time.monotonic()
downloader.cancel(id)
start("http://127.0.0.1:9/")
wait(lambda: len(reports) == 2)
downloader.close()
assert downloader.has_stopped(10)
print(time.monotonic() - began_s)
assert [report.code for report in reports] == ["interrupted", "unreachable"]
"""
LOOKUP_S = 16
LIMIT_S = LOOKUP_S / 2  # whoever waits for the lookup takes all of it


def test_a_lane_is_closed_while_a_name_is_looked_up(tmp_path: Path) -> None:
    """And the process ends at once."""
    assert run(LANE, tmp_path) < LIMIT_S


def test_a_download_is_cancelled_while_a_name_is_looked_up(tmp_path: Path) -> None:
    """Another one of its process goes on, and the process ends at once."""
    assert run(DOWNLOADS, tmp_path) < LIMIT_S


def run(program: str, folder: Path) -> float:
    """Returns what a program prints that runs where names are not answered."""
    options = f"options timeout:{LOOKUP_S} attempts:1"
    (folder / "resolv.conf").write_text(f"nameserver 127.0.0.1\n{options}\n")
    (folder / "nsswitch.conf").write_text("hosts: dns\n")
    mounts = [
        f"mount --bind {folder}/{name} /etc/{name}" for name in ("resolv.conf", "nsswitch.conf")
    ]
    script = " && ".join(["ip link set lo up", *mounts, 'exec "$@"'])
    command = without_mounts("sh", "-c", script, "sh", sys.executable, "-c", program)
    done = subprocess.run(
        ["unshare", "--net", *command],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout)
