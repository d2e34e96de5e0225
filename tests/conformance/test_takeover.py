"""The client is killed while one request of a known kind is under way: the next one answers it.

On a scripted server that holds its answers back, so that the moment of the death is exact.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachefs.core import messages as m
from tests.conformance.conftest import node_for
from tests.conformance.transports import CACHED, KERNEL, LIMIT_S, Mounted
from tests.conformance.tree import FILES
from tests.services.processes import wait_until
from tests.unit.fuse.fake_node import NAMESPACE

# Kind of request -> what the server is asked meanwhile, and a caller that prints what it got.
KINDS: dict[str, tuple[type[m.Message], str]] = {
    "lookup": (m.Lookup, "os.stat(root + '/d/cold').st_size"),
    "lookup of nothing": (m.Lookup, "os.path.exists(root + '/d/nothing')"),
    "getattr": (m.GetAttr, "os.fstat(fd).st_size"),
    "open": (m.Open, "md5(open(root + '/d/cold', 'rb').read())"),
    "read": (m.Ensure, "md5(open(root + '/d/partial', 'rb').read())"),
    "map": (m.Ensure, "md5(mmap.mmap(fd, 0, prot=mmap.PROT_READ)[:])"),
    "readdir": (m.ListDir, "sorted(os.listdir(root + '/d'))"),
    "readlink": (m.GetAttr, "os.readlink(root + '/link')"),
}
PROGRAM = """
import hashlib, json, mmap, os, sys
root = sys.argv[1]
fd = os.open(root + '/d/partial', os.O_RDONLY)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
md5 = lambda data: hashlib.md5(data).hexdigest()
print("ready", flush=True)
sys.stdin.readline()
try:
    print(json.dumps({what}))
except OSError as err:
    print(json.dumps(repr(err)))
"""


@pytest.fixture(params=[KERNEL, CACHED])
def survivor(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Mounted]:
    with node_for(tmp_path, request.param) as mounted:
        node = mounted.node
        node.add_dir("d")
        node.add_file("d/warm", FILES["warm"])
        node.add_file("d/cold", FILES["cold"], published=False)
        node.add_file("d/partial", FILES["partial"], published=False)
        node.add_link("link", b"d/warm")
        node.valid_for_s = 0.0
        assert mounted.start(heartbeat_timeout_s=2.0).failure is None
        yield mounted
        complaints = [line for line in mounted.complaints() if "Traceback" in line]
        assert complaints == []


def caller(mounted: Mounted, what: str) -> subprocess.Popen[str]:
    """A program that has a file open, and waits for a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.replace("{what}", what), str(mounted.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def answer_of(process: subprocess.Popen[str]) -> object:
    out, _ = process.communicate("go\n", timeout=LIMIT_S)
    return json.loads(out)


def next_client(mounted: Mounted, before: int) -> None:
    wait_until(lambda: mounted.client != before, "the next client")


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_killed_during(survivor: Mounted, kind: str) -> None:
    """Twice. The caller gets the same answer as from a client that lives."""
    node = survivor.node
    message, what = KINDS[kind]
    with caller(survivor, what) as calm:
        want = answer_of(calm)
    process = caller(survivor, what)
    gate = node.hold(message)
    try:
        assert process.stdin is not None
        count = len(node.asked(message))
        process.stdin.write("go\n")
        process.stdin.flush()
        for _ in range(2):
            node.wait_asked(message, count + 1)
            count = len(node.asked(message))
            before = survivor.client
            os.kill(before, signal.SIGKILL)
            next_client(survivor, before)
        node.wait_asked(message, count + 1)
        gate.set()
        assert answer_of(process) == want
    finally:
        gate.set()
        process.kill()
        process.communicate()


@pytest.mark.parametrize("name", ["warm", "cold", "partial"])
def test_killed_before_a_release(survivor: Mounted, name: str) -> None:
    """A release that nobody has read, or answered, reaches the next one; nothing stays open."""
    path = survivor.path / "d" / name
    for _ in range(3):
        before = survivor.client
        fd = os.open(path, os.O_RDONLY)
        assert os.pread(fd, 5000, 100) == FILES[name][100:5100]
        os.kill(before, signal.SIGSTOP)
        os.close(fd)
        os.kill(before, signal.SIGKILL)
        survivor.node.open_handles.clear()  # a server releases what a session had
        next_client(survivor, before)
    assert path.read_bytes() == FILES[name]
    wait_until(lambda: not survivor.node.open_handles, "the server's handles are released")


@pytest.mark.parametrize("name", ["warm", "cold", "partial"])
def test_open_files_and_maps_are_taken_over(survivor: Mounted, name: str) -> None:
    node = survivor.node
    data = FILES[name]
    with (survivor.path / "d" / name).open("rb", buffering=0) as file:
        for number in range(4):
            before = survivor.client
            os.kill(before, signal.SIGKILL)
            offset = number * 100_000
            assert os.pread(file.fileno(), 5000, offset) == data[offset : offset + 5000]
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            next_client(survivor, before)
            if number == 1 and name == "partial":
                node.publish(node.find("d/partial"))  # complete meanwhile, unknown to the old open
            assert (survivor.path / "d" / name).read_bytes() == data
        assert os.pread(file.fileno(), len(data), 0) == data


def test_an_invalidation_that_came_while_nobody_was_there(survivor: Mounted) -> None:
    """The next client cannot know what the last one was told; it distrusts all names."""
    node = survivor.node
    node.valid_for_s = 60.0
    path = survivor.path / "d/new"
    assert not path.exists()
    before = survivor.client
    os.kill(before, signal.SIGSTOP)
    node.add_file("d/new", b"here")
    node.event(m.Invalidate(NAMESPACE, 1, [(node.find("d"), b"new")]))
    os.kill(before, signal.SIGKILL)
    next_client(survivor, before)
    wait_until(path.exists, "the new file shows")


def test_a_place_in_a_directory_is_taken_over(survivor: Mounted) -> None:
    node = survivor.node
    names = [f"f{number:05d}" for number in range(2500)]
    node.add_dir("many")
    for name in names:
        node.add_file(f"many/{name}", b"", published=False)
    found = []
    with os.scandir(survivor.path / "many") as entries:
        for number, entry in enumerate(entries):
            found.append(entry.name)
            if number in (10, 900, 1700, 2499):
                before = survivor.client
                os.kill(before, signal.SIGKILL)
                next_client(survivor, before)
    assert found == names
