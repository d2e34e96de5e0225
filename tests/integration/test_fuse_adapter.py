"""The real kernel, the real client process, a scripted server: what the adapter does to callers."""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import json
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cachefs.core import messages as m
from cachefs.core.model import UfsSpec
from cachefs.core.specs import ClientSpec, Started
from cachefs.fuse import mounting
from tests.unit.fuse.fake_node import NAMESPACE, FakeNode

LIMIT_S = 20.0
BODY = bytes(range(256)) * 4096  # 1 MiB


class Mounted:
    """A client process on a fake node."""

    def __init__(self, node: FakeNode, root: Path) -> None:
        self.node = node
        self.root = root
        self.path = root / "mnt"
        self.path.mkdir()
        self.home = root / "home"
        self.log = root / "client.log"
        self.process: subprocess.Popen[bytes] | None = None

    def spec(self, **changes: object) -> ClientSpec:
        spec = ClientSpec(
            home=str(self.home),
            socket=str(self.root / "node.sock"),
            source=UfsSpec("s3://bucket/pre,fix"),
            mountpoint=str(self.path),
            log_file=str(self.log),
        )
        return msgspec.structs.replace(spec, **changes)

    def start(self, **changes: object) -> Started:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-m", "cachefs.fuse.client"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(msgspec.msgpack.encode(self.spec(**changes)))
        self.process.stdin.close()
        line = self.process.stdout.read()
        self.process.stdout.close()
        return msgspec.json.decode(line, type=Started)

    def is_mounted(self) -> bool:
        return f" {self.path} " in Path("/proc/self/mountinfo").read_text()

    def ended(self) -> int:
        assert self.process is not None
        return self.process.wait(LIMIT_S)

    def clean_up(self) -> None:
        for gate in self.node.gates.values():
            gate.set()
        if self.is_mounted():
            subprocess.run(["umount", "-l", str(self.path)], check=False)
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(LIMIT_S)
            self.process.kill()
            self.process.wait()


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[Mounted]:
    """A node that listens, nothing mounted yet."""
    with FakeNode(tmp_path / "node") as node:
        mounted = Mounted(node, tmp_path)
        node.listen(tmp_path / "node.sock")
        try:
            yield mounted
        finally:
            mounted.clean_up()


@pytest.fixture
def mounted(idle: Mounted) -> Mounted:
    idle.node.add_dir("d")
    idle.node.add_file("d/warm", BODY)
    idle.node.add_file("d/cold", BODY[::-1], published=False)
    idle.node.add_file("empty", b"", published=False)
    idle.node.add_link("link", b"d/warm")
    assert idle.start().failure is None
    return idle


def test_files_links_and_attributes(mounted: Mounted) -> None:
    assert sorted(os.listdir(mounted.path)) == ["d", "empty", "link"]
    assert (mounted.path / "d/warm").read_bytes() == BODY
    assert (mounted.path / "d/cold").read_bytes() == BODY[::-1]
    assert (mounted.path / "link").read_bytes() == BODY
    assert os.readlink(mounted.path / "link") == "d/warm"
    assert (mounted.path / "empty").read_bytes() == b""
    info = (mounted.path / "d/warm").stat()
    assert (info.st_size, info.st_nlink, info.st_blocks) == (len(BODY), 1, len(BODY) // 512)
    assert info.st_mode == 0o100644
    assert info.st_mtime_ns == info.st_ctime_ns == 1_700_000_000_500_000_000
    assert (mounted.path / "d").stat().st_mode == 0o40755
    assert info.st_ino == mounted.node.find("d/warm")
    assert len(mounted.node.asked(m.Open)) == 1, "only the cold file is asked for"


def test_ranges_and_maps(mounted: Mounted) -> None:
    with (mounted.path / "d/warm").open("rb", buffering=0) as file:
        for offset, size in [(0, 1), (4095, 2), (len(BODY) - 3, 100), (len(BODY), 10)]:
            assert os.pread(file.fileno(), size, offset) == BODY[offset : offset + size]
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
            assert view[:] == BODY


def test_errors_of_callers(mounted: Mounted) -> None:
    for path, number in [("nothing", errno.ENOENT), ("empty/x", errno.ENOTDIR)]:
        with pytest.raises(OSError) as caught:
            os.stat(mounted.path / path)
        assert caught.value.errno == number
    with pytest.raises(OSError) as caught:
        (mounted.path / "new").write_bytes(b"")
    assert caught.value.errno == errno.EROFS


def test_writes_are_refused_on_a_mount_that_is_not_read_only(idle: Mounted) -> None:
    idle.node.add_file("a", b"x")
    idle.start(read_only=False)
    attempts = [
        lambda: (idle.path / "new").write_bytes(b"x"),
        lambda: (idle.path / "a").open("r+b"),
        lambda: os.truncate(idle.path / "a", 0),
        lambda: (idle.path / "a").unlink(),
        lambda: (idle.path / "d").mkdir(),
        lambda: (idle.path / "a").rename(idle.path / "b"),
        lambda: os.symlink("a", idle.path / "l"),
        lambda: os.link(idle.path / "a", idle.path / "l"),
        lambda: os.utime(idle.path / "a"),
        lambda: os.chmod(idle.path / "a", 0o600),
        lambda: os.mkfifo(idle.path / "f"),
        lambda: os.setxattr(idle.path / "a", "user.a", b"x"),
    ]
    for number, attempt in enumerate(attempts):
        with pytest.raises(OSError) as caught:
            attempt()
        assert caught.value.errno == errno.EROFS, f"attempt {number}"


def test_statfs_and_mount_table(mounted: Mounted) -> None:
    info = os.statvfs(mounted.path)
    assert info.f_bavail * info.f_frsize >= 1 << 50
    assert info.f_favail > 0
    assert info.f_namemax == 255
    line = next(
        line
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
        if f" {mounted.path} " in line
    )
    assert " fuse.cachefs s3://bucket/pre,fix ro," in line
    device = line.split()[2]
    assert int(Path(f"/sys/class/bdi/{device}/read_ahead_kb").read_text()) >= 1024


def test_read_ahead_of_many_readers_is_not_dropped(mounted: Mounted) -> None:
    """The kernel's own limit is a dozen; beyond it, files are asked for page by page."""
    minor = os.minor((mounted.path).stat().st_dev)
    control = mounting.control_file_system()
    try:
        for name in ("max_background", "congestion_threshold"):
            with open(os.open(f"{minor}/{name}", os.O_RDONLY, dir_fd=control)) as file:
                assert int(file.read()) == mounting.MAX_BACKGROUND
    finally:
        os.close(control)


def test_a_large_directory_and_seeking_in_it(idle: Mounted) -> None:
    names = [f"f{number:05d}" for number in range(2500)]
    for name in names:
        idle.node.add_file(name, b"", published=False)
    idle.start()
    assert sorted(os.listdir(idle.path)) == names
    pages = idle.node.asked(m.ListDir)
    assert len(pages) == 3
    with os.scandir(idle.path) as entries:
        first = [next(entries).name for _ in range(10)]
    assert first == names[:10]
    shown = subprocess.run(
        ["ls", "-afi", str(idle.path)], capture_output=True, text=True, check=True
    ).stdout.split()
    assert shown[1:4:2] == [".", ".."]
    assert len(shown) == 2 * (len(names) + 2)


def test_a_changed_name_is_seen_at_once_when_told(mounted: Mounted) -> None:
    """The kernel keeps names for `valid_for_s`; an invalidation cuts that short."""
    path = mounted.path / "d/warm"
    before = path.stat().st_ino
    mounted.node.remove("d/warm")
    after = mounted.node.add_file("d/warm", b"new")
    assert path.stat().st_ino == before, "the kernel still trusts what it was told"
    mounted.node.event(m.Invalidate(NAMESPACE, 1, [(mounted.node.find("d"), b"warm")]))
    _poll(lambda: path.stat().st_ino == after, "the new file shows")
    assert path.read_bytes() == b"new"


def test_everything_can_be_distrusted(mounted: Mounted) -> None:
    path = mounted.path / "d/warm"
    before = path.stat().st_ino
    mounted.node.remove("d/warm")
    mounted.node.add_file("d/warm", b"new")
    assert path.stat().st_ino == before
    mounted.node.event(m.Invalidate(NAMESPACE, 1, everything=True))
    _poll(lambda: path.stat().st_ino != before, "the new file shows")


def test_a_stale_open_is_looked_up_again(mounted: Mounted) -> None:
    """The name changed, nobody said so, the kernel trusts it: open finds the new file."""
    path = mounted.path / "d/cold"
    os.stat(path)
    mounted.node.remove("d/cold")
    mounted.node.add_file("d/cold", b"new", published=False)
    assert path.read_bytes() == b"new"


def test_an_open_file_outlives_its_name(mounted: Mounted) -> None:
    with (mounted.path / "d/warm").open("rb") as file:
        mounted.node.unpublish(mounted.node.find("d/warm"))
        mounted.node.remove("d/warm")
        mounted.node.event(m.Invalidate(NAMESPACE, 1, everything=True))
        assert file.read() == BODY
        assert os.fstat(file.fileno()).st_size == len(BODY)


PROGRAM = """
import os, signal, sys
class Stop(Exception): pass
def stop(*_): raise Stop
signal.signal(signal.SIGINT, stop)
print("ready", flush=True)
try:
    {what}
except Stop:
    print("interrupted", flush=True)
"""


def _caller(what: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM.format(what=what), *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (m.Lookup, "os.stat(sys.argv[1] + '/nothing/x')"),
        (m.Open, "open(sys.argv[1] + '/d/cold')"),
        (m.ListDir, "os.listdir(sys.argv[1] + '/d')"),
    ],
)
@pytest.mark.parametrize("python_handler", [True, False])
def test_ctrl_c_ends_a_wait(
    mounted: Mounted, kind: type[m.Message], what: str, python_handler: bool
) -> None:
    gate = mounted.node.hold(kind)
    if not python_handler:
        what = f"signal.signal(signal.SIGINT, signal.SIG_DFL); {what}"
    with _caller(what, mounted.path) as process:
        mounted.node.wait_asked(kind)
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=LIMIT_S)
        assert time.monotonic() - started < 2.0
    assert (out, process.returncode) == (("interrupted\n", 0) if python_handler else ("", -2))
    mounted.node.wait_asked(m.Cancel)
    gate.set()
    assert (mounted.path / "d/cold").read_bytes() == BODY[::-1]


@pytest.mark.parametrize("python_handler", [True, False])
def test_ctrl_c_ends_a_cold_read(idle: Mounted, python_handler: bool) -> None:
    big = BODY * 9
    idle.node.add_file("big", big, published=False)
    idle.start()
    gate = idle.node.hold(m.Ensure)
    what = "open(sys.argv[1], 'rb', buffering=0).read(100)"
    if not python_handler:
        what = f"signal.signal(signal.SIGINT, signal.SIG_DFL); {what}"
    with _caller(what, idle.path / "big") as process:
        idle.node.wait_asked(m.Ensure)
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=LIMIT_S)
        assert time.monotonic() - started < 2.0
    assert (out, process.returncode) == (("interrupted\n", 0) if python_handler else ("", -2))
    gate.set()
    assert (idle.path / "big").read_bytes() == big


def test_waiting_opens_hold_nobody_up(idle: Mounted) -> None:
    """More opens wait for the origin than pyfuse3 serves by default; warm files go on."""
    count = 150
    for number in range(count):
        idle.node.add_file(f"cold{number}", b"%d" % number, published=False)
    idle.node.add_file("warm", BODY)
    idle.start()
    gate = idle.node.hold(m.Open)
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        opened = [pool.submit((idle.path / f"cold{number}").read_bytes) for number in range(count)]
        idle.node.wait_asked(m.Open, count)
        assert (idle.path / "warm").read_bytes() == BODY
        gate.set()
        assert [future.result(LIMIT_S) for future in opened] == [b"%d" % n for n in range(count)]
    assert (idle.path / "cold7").read_bytes() == b"7"


def test_the_server_goes_and_comes_back(mounted: Mounted) -> None:
    """Warm files need no server; a partial file open from before goes on in the next session."""
    node = mounted.node
    big = BODY * 9
    node.add_file("d/big", big, published=False)
    with (mounted.path / "d/big").open("rb", buffering=0) as file:
        assert os.pread(file.fileno(), 10, 0) == big[:10]
        node.cut()
        node.wait_asked(m.Attach, 2)
        assert os.pread(file.fileno(), 10, 5 << 20) == big[5 << 20 :][:10]
    assert (mounted.path / "d/warm").read_bytes() == BODY
    assert len([body for body in node.asked(m.Open) if body.ino == node.find("d/big")]) == 2


def test_uses_are_reported(mounted: Mounted) -> None:
    assert (mounted.path / "d/warm").read_bytes() == BODY
    mounted.node.wait_asked(m.Used)
    used = mounted.node.asked(m.Used)
    assert [name for report in used for name in report.names] == [
        mounted.node.content_name(mounted.node.find("d/warm"))
    ]
    assert sum(report.hit_bytes for report in used) >= len(BODY)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_end_it(mounted: Mounted, number: signal.Signals) -> None:
    records = list((mounted.home / "mounts").iterdir())
    assert json.loads(records[0].read_text())["mountpoint"] == str(mounted.path)
    assert mounted.process is not None
    mounted.process.send_signal(number)
    assert mounted.ended() == 0
    assert not mounted.is_mounted()
    assert not records[0].exists()


def test_detach_ends_it_even_when_busy(mounted: Mounted) -> None:
    fd = os.open(mounted.path / "d/warm", os.O_RDONLY)
    mounted.node.event(m.Detach("stopping"))
    assert mounted.ended() == 0
    assert not mounted.is_mounted()
    with contextlib.suppress(OSError):  # the first close of a mount asks its server
        os.close(fd)


@pytest.mark.parametrize("command", [["umount"], ["umount", "-l"], ["fusermount3", "-u"]])
def test_the_system_unmounts_it(mounted: Mounted, command: list[str]) -> None:
    subprocess.run([*command, str(mounted.path)], check=True)
    assert mounted.ended() == 0
    assert not list((mounted.home / "mounts").iterdir())


def test_lazy_unmount_lets_readers_finish(mounted: Mounted) -> None:
    with (mounted.path / "d/warm").open("rb", buffering=0) as file:
        subprocess.run(["umount", "-l", str(mounted.path)], check=True)
        assert file.read(len(BODY)) == BODY
    assert mounted.ended() == 0


def test_a_start_that_fails_says_why(idle: Mounted) -> None:
    def refuse(_: m.Message) -> tuple[m.Message, None]:
        return m.Failure("access-denied", "no", remedy="ask"), None

    idle.node.scripts[m.Attach] = refuse
    started = idle.start()
    assert started.failure is not None
    assert started.failure.code == "access-denied"
    assert idle.ended() == 1
    assert not idle.is_mounted()


def test_a_mount_point_that_is_none(idle: Mounted) -> None:
    started = idle.start(mountpoint=str(idle.root / "missing"))
    assert started.failure is not None
    assert started.failure.code == "cannot-mount"
    assert idle.ended() == 1


def test_nothing_unexpected_in_the_log(mounted: Mounted) -> None:
    os.listdir(mounted.path)
    assert mounted.process is not None
    mounted.process.terminate()
    assert mounted.ended() == 0
    log = mounted.log.read_text()
    assert not [line for line in log.splitlines() if " WARNING " in line or " ERROR " in line], log


def _poll(condition: object, what: str) -> None:
    pause = threading.Event()
    deadline = time.monotonic() + LIMIT_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, f"not in time: {what}"
        pause.wait(0.01)
