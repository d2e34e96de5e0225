"""Waits, signals, and the ends of a mount: the same on every transport."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from cachefs.core import messages as m
from tests.conformance.transports import LIMIT_S, Mounted
from tests.conformance.tree import FILES
from tests.services.processes import wait_until
from tests.services.unmounting import unmount
from tests.unit.fuse.fake_node import NAMESPACE

BIG = FILES["partial"]
AT_ONCE_S = 15.0  # who is not let go waits for ever


# ---- waits ----

PROGRAM = """
import mmap, os, signal, sys
class Stop(Exception): pass
def stop(*_): raise Stop
signal.signal(signal.SIGINT, stop)
print("ready", flush=True)
try:
    {what}
except Stop:
    print("interrupted", flush=True)
"""
WAITS = {
    "lookup": (m.Lookup, "os.stat(sys.argv[1] + '/nothing/x')"),
    "open": (m.Open, "open(sys.argv[1] + '/d/cold')"),
    "read": (m.Ensure, "os.pread(os.open(sys.argv[1] + '/d/partial', os.O_RDONLY), 100, 0)"),
    "readdir": (m.ListDir, "os.listdir(sys.argv[1] + '/d')"),
}


def _caller(what: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM.format(what=what), *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("kind", sorted(WAITS))
@pytest.mark.parametrize("python_handler", [True, False])
def test_ctrl_c_ends_a_wait(mounted: Mounted, kind: str, python_handler: bool) -> None:
    message, what = WAITS[kind]
    gate = mounted.node.hold(message)
    if not python_handler:
        what = f"signal.signal(signal.SIGINT, signal.SIG_DFL); {what}"
    with _caller(what, mounted.path) as process:
        mounted.node.wait_asked(message)
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=LIMIT_S)
        assert time.monotonic() - started < AT_ONCE_S
    assert (out, process.returncode) == (("interrupted\n", 0) if python_handler else ("", -2))
    if kind != "read":  # read-ahead goes on without who caused it
        mounted.node.wait_asked(m.Cancel)
    gate.set()
    assert (mounted.path / "d/partial").read_bytes() == BIG
    assert (mounted.path / "d/cold").read_bytes() == FILES["cold"]


@pytest.mark.parametrize("kind", sorted(WAITS))
def test_a_killed_caller_ends_at_once(mounted: Mounted, kind: str) -> None:
    message, what = WAITS[kind]
    gate = mounted.node.hold(message)
    with _caller(what, mounted.path) as process:
        mounted.node.wait_asked(message)
        process.kill()
        assert process.wait(AT_ONCE_S) == -9
    gate.set()
    assert (mounted.path / "d/cold").read_bytes() == FILES["cold"]


def test_a_signal_that_is_ignored_ends_nothing(mounted: Mounted) -> None:
    gate = mounted.node.hold(m.Open)
    what = "signal.signal(signal.SIGWINCH, signal.SIG_IGN); "
    what += "print(len(open(sys.argv[1] + '/d/cold', 'rb').read()))"
    with _caller(what, mounted.path) as process:
        mounted.node.wait_asked(m.Open)
        for number in (signal.SIGWINCH, signal.SIGSTOP, signal.SIGCONT):
            process.send_signal(number)
        gate.set()
        out, _ = process.communicate(timeout=LIMIT_S)
    assert (out, process.returncode) == (f"{len(FILES['cold'])}\n", 0)


def test_waiting_opens_hold_nobody_up(idle: Mounted) -> None:
    """More opens wait for the origin than a pool of threads has; warm files go on."""
    count = 150
    for number in range(count):
        idle.node.add_file(f"cold{number}", b"%d" % number, published=False)
    idle.node.add_file("warm", FILES["warm"])
    assert idle.start().failure is None
    gate = idle.node.hold(m.Open)
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        opened = [pool.submit((idle.path / f"cold{number}").read_bytes) for number in range(count)]
        idle.node.wait_asked(m.Open, count)
        assert (idle.path / "warm").read_bytes() == FILES["warm"]
        gate.set()
        assert [future.result(LIMIT_S) for future in opened] == [b"%d" % n for n in range(count)]
    assert (idle.path / "cold7").read_bytes() == b"7"


def test_a_name_that_waits_holds_no_other_up_when_all_is_distrusted(mounted: Mounted) -> None:
    """Invalidations wait in the kernel for lookups under way: the mount must go on answering."""
    gate = mounted.node.hold(m.Lookup)
    waiting = threading.Thread(target=(mounted.path / "d/nothing").exists, daemon=True)
    waiting.start()
    mounted.node.wait_asked(m.Lookup)
    for number in range(20):
        parent = mounted.node.find("d")
        mounted.node.event(m.Invalidate(NAMESPACE, number, [(parent, b"nothing"), (parent, b"a")]))
    mounted.node.event(m.Invalidate(NAMESPACE, 30, everything=True))
    assert os.statvfs(mounted.path).f_namemax == 255
    gate.set()
    waiting.join(LIMIT_S)
    assert not waiting.is_alive()
    assert (mounted.path / "d/warm").read_bytes() == FILES["warm"]


# ---- starts and ends ----


def test_a_start_that_fails_says_why(idle: Mounted) -> None:
    def refuse(_: m.Message) -> tuple[m.Message, None]:
        return m.Failure("access-denied", "no", remedy="ask"), None

    idle.node.scripts[m.Attach] = refuse
    started = idle.start()
    assert started.failure is not None
    assert started.failure.code == "access-denied"
    assert idle.ended() == 1
    assert not idle.mountinfo()


def test_a_mount_point_that_is_none(idle: Mounted) -> None:
    started = idle.start(mountpoint=str(idle.root / "missing"))
    assert started.failure is not None
    assert started.failure.code == "cannot-mount"
    assert idle.ended() == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_end_it(mounted: Mounted, number: signal.Signals) -> None:
    records = list((mounted.home / "mounts").glob("*.json"))
    assert json.loads(records[0].read_text())["mountpoint"] == str(mounted.path)
    assert mounted.process is not None
    mounted.process.send_signal(number)
    assert mounted.ended() == 0
    assert not mounted.mountinfo()
    assert not records[0].exists()
    assert mounted.complaints() == []


def test_detach_ends_it_even_when_busy(mounted: Mounted) -> None:
    fd = os.open(mounted.path / "d/warm", os.O_RDONLY)
    mounted.node.event(m.Detach("stopping"))
    assert mounted.ended() == 0
    assert not mounted.mountinfo()
    with contextlib.suppress(OSError):  # the first close of a mount asks its server
        os.close(fd)


@pytest.mark.parametrize("command", [["umount"], ["umount", "-l"], ["fusermount3", "-u"]])
def test_the_system_unmounts_it(mounted: Mounted, command: list[str]) -> None:
    assert (mounted.path / "d/warm").read_bytes() == FILES["warm"]
    unmount(mounted.path, command)
    assert mounted.ended() == 0
    assert not list((mounted.home / "mounts").iterdir())
    assert mounted.complaints() == []


@pytest.mark.parametrize("name", ["warm", "partial"])
def test_lazy_unmount_lets_readers_finish(mounted: Mounted, name: str) -> None:
    with (mounted.path / "d" / name).open("rb", buffering=0) as file:
        subprocess.run(["umount", "-l", str(mounted.path)], check=True)
        assert os.pread(file.fileno(), len(FILES[name]), 0) == FILES[name]
        os.lseek(file.fileno(), 0, os.SEEK_SET)
    assert mounted.ended() == 0


def test_no_descriptor_is_left_open(mounted: Mounted) -> None:
    def count() -> int:
        return len(os.listdir(f"/proc/{mounted.client}/fd"))

    def round_() -> None:
        for name in ("warm", "cold", "partial"):
            with (mounted.path / "d" / name).open("rb") as file:
                file.read(5000)
        os.listdir(mounted.path / "d")

    round_()
    wait_until(lambda: not mounted.node.open_handles, "released")
    before = count()
    for _ in range(50):
        round_()
    wait_until(lambda: count() <= before + 1, "as many descriptors as before")
