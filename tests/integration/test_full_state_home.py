"""A state home on a disk that is full: a server that died is started again all the same."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachefs.launcher.reserve import NAME
from cachefs.launcher.state import StateHome
from tests.integration.conftest import Bucket, Node
from tests.services.processes import is_running, wait_until

MIB = 1 << 20
HOME_BYTES = 64 * MIB
QUICK_S = 15.0


@pytest.fixture
def small_home(node: Node) -> Iterator[Path]:
    """The state home is a file system of its own."""
    node.state.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={HOME_BYTES},mode=0700", "tmpfs", node.state],
        check=True,
        timeout=20,
    )
    try:
        yield node.state
    finally:
        node.clean_up()
        subprocess.run(["umount", "-l", node.state], check=True, timeout=20)


def fill(home: Path) -> Path:
    """Takes all the room that is left."""
    ballast = home / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    vfs = os.statvfs(home)
    assert vfs.f_bavail * vfs.f_frsize < 4096
    return ballast


def has_ended(pid: int) -> bool:
    return not is_running(pid)


def test_a_server_is_started_again_though_the_state_home_is_full(
    node: Node, bucket: Bucket, small_home: Path, tmp_path: Path
) -> None:
    node.allowed_log += ["state home", "server", "No space|no space|no room"]
    bucket.fill({f"f{n}": b"%d" % n * 1000 for n in range(20)})
    mnt = node.mount(
        bucket.url, *bucket.options, "--cache-dir", tmp_path / "cache", "--cache-size", "64MiB"
    )
    assert (mnt / "f1").read_bytes() == b"1" * 1000
    ballast = fill(small_home)
    for _ in range(2):
        server = next(one["pid"] for one in node.processes(mnt) if one["role"] == "server")
        os.kill(server, signal.SIGKILL)
        wait_until(functools.partial(has_ended, server), "the server has ended")
        since = time.monotonic()
        number = 2 if _ == 0 else 3
        assert (mnt / f"f{number}").read_bytes() == b"%d" % number * 1000
        assert time.monotonic() - since < QUICK_S
    wait_until(lambda: "state home" in node.logs(), "the log says so")
    ballast.unlink()


def test_a_mount_survives_the_end_of_its_processes_though_the_state_home_is_full(
    node: Node, bucket: Bucket, small_home: Path, tmp_path: Path
) -> None:
    """There is no reserve either. The record follows once there is room."""
    node.allowed_log += ["state home", "No space|no space|no room", "client|supervisor", "record"]
    bucket.fill({f"f{n}": b"%d" % n * 1000 for n in range(20)})
    mnt = node.mount(
        bucket.url, *bucket.options, "--cache-dir", tmp_path / "cache", "--cache-size", "64MiB"
    )
    for number in range(3):  # the metadata of a cold file would need room
        assert (mnt / f"f{number}").read_bytes() == b"%d" % number * 1000
    home = StateHome(small_home)
    (small_home / NAME).unlink(missing_ok=True)
    ballast = fill(small_home)
    first = home.find_mount(str(mnt))
    assert first is not None
    supervisor = first.supervisor
    for victim in (first.pid, supervisor):
        os.kill(victim, signal.SIGKILL)
        wait_until(functools.partial(has_ended, victim), "the process has ended")
        for number in range(3):
            assert (mnt / f"f{number}").read_bytes() == b"%d" % number * 1000
    ballast.unlink()

    def record_is_right() -> bool:
        record = home.find_mount(str(mnt))
        assert record is not None
        both = (record.pid, record.supervisor)
        return not {first.pid, supervisor} & {*both} and all(map(is_running, both))

    wait_until(record_is_right, "the record names the processes that there are")
    assert node.logs().count("the record of this mount cannot be written") <= 4


def test_the_reserve_is_room_for_the_record_of_a_successor(
    node: Node, bucket: Bucket, small_home: Path, tmp_path: Path
) -> None:
    node.allowed_log += ["state home", "client"]
    bucket.fill({"f": b"bytes"})
    mnt = node.mount(
        bucket.url, *bucket.options, "--cache-dir", tmp_path / "cache", "--cache-size", "64MiB"
    )
    wait_until(lambda: (small_home / NAME).exists(), "the server has made the reserve")
    fill(small_home)
    home = StateHome(small_home)
    first = home.find_mount(str(mnt))
    assert first is not None
    os.kill(first.pid, signal.SIGKILL)
    assert (mnt / "f").read_bytes() == b"bytes"

    def is_written() -> bool:
        record = home.find_mount(str(mnt))
        return record is not None and record.pid != first.pid and is_running(record.pid)

    wait_until(is_written, "the record names the successor")
    assert not (small_home / NAME).exists()
