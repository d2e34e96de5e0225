"""A state home on a file system that is frozen (`fsfreeze`, a snapshot) or has become read-only,
beside a healthy cache directory: names, logs and records cannot be written, and no process stops
for that."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.conftest import Bucket, Node
from tests.services.frozen_disk import FrozenDisk, frozen_disk
from tests.services.processes import is_running, wait_until

SMALL = 110 << 10
DEADLINE_S = 4.0
QUICK_S = 10.0  # a process that waits for the disk holds up its callers until the thaw


@pytest.fixture
def home_disk(node: Node, tmp_path: Path) -> Iterator[FrozenDisk]:
    """The disk of the state home."""
    node.allowed_log += [r"no answer within", r"could not be written", r"does not answer"]
    with frozen_disk(tmp_path) as disk:
        disk.path.chmod(0o700)
        node.state.mkdir(parents=True)
        subprocess.run(["mount", "--bind", disk.path, node.state], check=True, timeout=20)
        try:
            yield disk
        finally:
            disk.go_on()
            node.clean_up()
            subprocess.run(["umount", "-l", node.state], check=True, timeout=20)


@contextlib.contextmanager
def within(limit_s: float) -> Iterator[None]:
    since = time.monotonic()
    yield
    assert time.monotonic() - since < limit_s


def error_of(call: Callable[[], object]) -> int:
    """The errno of a call that must fail."""
    try:
        call()
    except OSError as err:
        return err.errno or 0
    raise AssertionError("the call succeeded")


def has_bytes(path: Path, data: bytes) -> bool:
    """False also for a read that fails: of the old version, or at its deadline."""
    with contextlib.suppress(OSError):
        return path.read_bytes() == data
    return False


def test_no_process_waits_for_its_log(
    node: Node, bucket: Bucket, home_disk: FrozenDisk, tmp_path: Path
) -> None:
    data = {f"f{n}": os.urandom(SMALL) for n in range(20)}
    data |= {"big": os.urandom(8 << 20), "later/f": b"later"}
    bucket.fill(data)
    mnt = node.mount(
        *(bucket.url, *bucket.options, "--origin-deadline", f"{DEADLINE_S:g}s"),
        *("--cache-dir", tmp_path / "cache", "--cache-size", "256MiB"),
    )
    for name in ("f0", "f1"):
        assert (mnt / name).read_bytes() == data[name]
    assert len(os.listdir(mnt)) == 22
    with (mnt / "big").open("rb") as big, ThreadPoolExecutor() as pool:
        assert big.read(1 << 20) == data["big"][: 1 << 20]
        home_disk.hang()
        try:
            unknown = pool.submit(error_of, (mnt / "later/f").stat)
            with within(QUICK_S):
                assert (mnt / "f1").read_bytes() == data["f1"]
                assert (mnt / "f2").read_bytes() == data["f2"]
            # Server and client log the failure.
            assert unknown.result(6 * DEADLINE_S) == errno.EIO
            with within(QUICK_S):
                assert (mnt / "f1").read_bytes() == data["f1"]
                assert (mnt / "f3").read_bytes() == data["f3"]
                assert (mnt / "f4").stat().st_size == SMALL
                assert big.read() == data["big"][1 << 20 :]
                assert node.status(mnt)["state"] == "ok"
        finally:
            home_disk.go_on()
    wait_until((mnt / "later/f").exists, "the name is written")
    wait_until(lambda: node.logs().count("no answer within") >= 2, "the log has what was queued")
    node.umount(mnt)


def test_known_names_are_answered_while_the_names_cannot_be_written(
    node: Node, bucket: Bucket, home_disk: FrozenDisk, tmp_path: Path
) -> None:
    """[S-names-unwritten] The origin confirms each: the sync interval ends during the freeze."""
    data = {f"f{n}": os.urandom(SMALL) for n in range(20)}
    bucket.fill(data | {"later/f": b"later"})
    interval_s = 1.0
    mnt = node.mount(
        *(bucket.url, *bucket.options, "--origin-deadline", f"{DEADLINE_S:g}s"),
        *("--cache-dir", tmp_path / "cache", "--cache-size", "256MiB"),
        *("--sync-interval", f"{interval_s:g}s"),
    )
    assert len(os.listdir(mnt)) == 21
    assert (mnt / "f1").read_bytes() == data["f1"]
    changed = os.urandom(SMALL)
    home_disk.hang()
    try:
        bucket.put("f9", changed)
        until = time.monotonic() + DEADLINE_S + 3 * interval_s
        while time.monotonic() < until:  # each name is checked several times
            for name in ("f1", "f2", "f3"):
                assert (mnt / name).read_bytes() == data[name]
        with within(QUICK_S):
            assert (mnt / "f4").read_bytes() == data["f4"]
        # Where the client still has its old version, the open, its report and the next lookup wait.
        with within(5 * DEADLINE_S + 2 * QUICK_S):
            assert error_of((mnt / "f9").read_bytes) == errno.EIO
        assert len(os.listdir(mnt)) == 21
        with within(QUICK_S):
            assert len(os.listdir(mnt)) == 21
        assert "its disk has not answered for" in node.run("doctor").stdout
    finally:
        home_disk.go_on()
    wait_until(lambda: has_bytes(mnt / "f9", changed), "the change is visible")
    assert (mnt / "later/f").read_bytes() == b"later"
    assert "has not answered" not in node.run("doctor").stdout
    node.umount(mnt)


def make_read_only(disk: FrozenDisk) -> None:
    """As ext4 does after an error."""
    lines = map(str.split, Path("/proc/self/mounts").read_text().splitlines())
    device = next(Path(fields[0]).name for fields in lines if fields[1] == str(disk.path))
    options = "remount,errors=remount-ro"
    subprocess.run(["mount", "-o", options, disk.path], check=True, timeout=20)
    Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("1")
    assert error_of((disk.path / "new").touch) == errno.EROFS


def test_a_mount_works_and_ends_while_the_state_home_is_read_only(
    node: Node, bucket: Bucket, home_disk: FrozenDisk, tmp_path: Path
) -> None:
    node.allowed_log += ["Read-only file system"]
    data = {f"f{n}": os.urandom(SMALL) for n in range(20)}
    bucket.fill(data | {"later/f": b"later"})
    mnt = node.mount(
        *(bucket.url, *bucket.options, "--sync-interval", "0.2s"),
        *("--cache-dir", tmp_path / "cache", "--cache-size", "256MiB"),
    )
    assert len(os.listdir(mnt)) == 21
    make_read_only(home_disk)
    for _ in range(3):
        for name in ("f1", "f2", "f3"):
            assert (mnt / name).read_bytes() == data[name]
        assert error_of((mnt / "later/f").stat) == errno.EIO
        assert len(os.listdir(mnt)) == 21
        assert "Read-only file system" in node.run("health").stdout
    refused = node.fails("mount", bucket.url, node.mountpoint("other"), *bucket.options)
    assert "Read-only file system" in refused
    pids = [process["pid"] for process in node.processes(mnt)]
    done = node.run("umount", mnt)
    assert (done.returncode, done.stdout) == (0, f"OK, {mnt} is unmounted\n")
    assert "its record stays" in done.stderr
    wait_until(lambda: not any(map(is_running, pids)), "all processes end")
