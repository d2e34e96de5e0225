"""Servers are found, or started once; a start that fails leaves nothing running."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cachefs.client.blocking import BlockingClient
from cachefs.core import errors
from cachefs.core import messages as m
from cachefs.core.model import UfsSpec
from cachefs.core.specs import ClientSpec, ServerSpec
from cachefs.fuse import client
from cachefs.launcher import hung_server, processes, state
from cachefs.launcher.process_watch import birth_of
from cachefs.launcher.processes import ProcessId, Watch, ensure_server
from tests.services.processes import stop, wait_until
from tests.unit.cli.fake_node import FakeNode
from tests.unit.launcher.test_process_watch import process_of_cachefs

SCRIPT = str(Path(__file__).with_name("fake_cachefs_server.py"))
SIZE_BYTES = 64 << 20
STARTER = """
import sys
import msgspec
from cachefs.core.specs import ServerSpec
from cachefs.launcher.processes import ensure_server
spec = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=ServerSpec)
ensure_server(spec, command=(sys.executable, sys.argv[1], "slow"))
"""


class Launcher:
    """Starts fake servers in a home of the test's own, and stops what is left."""

    def __init__(self, root: Path) -> None:
        self.home = state.private_dir(root / "home")
        self.root = root

    def spec(self, url: str = "s3://bucket", **changes: object) -> ServerSpec:
        fields = {"cache_dir": "", "cache_size_bytes": SIZE_BYTES, **changes}
        return ServerSpec(home=str(self.home), source=UfsSpec(url), **fields)  # type: ignore[arg-type]

    def start(self, mode: str = "serve", **changes: object) -> processes.Server:
        return ensure_server(self.spec(**changes), command=(sys.executable, SCRIPT, mode))  # type: ignore[arg-type]

    def source_dir(self, url: str = "s3://bucket") -> Path:
        return state.StateHome(self.home).source_dir(UfsSpec(url))

    def pid(self, mode: str) -> int:
        return int((self.home / f"pid-{mode}").read_text())

    def stop(self) -> None:
        for path in self.home.glob("pid-*"):
            with Watch(ProcessId(int(path.read_text()))) as watch:
                watch.signal(signal.SIGKILL)
                assert watch.ended(10)


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    made = Launcher(tmp_path)
    yield made
    made.stop()


def ended(pid: int) -> bool:
    with Watch(ProcessId(pid)) as watch:
        return watch.ended(10)


def test_started_once_and_then_found(launcher: Launcher) -> None:
    first = launcher.start()
    assert first.started
    assert first.warning == "served by a fake"
    second = launcher.start()
    assert second == (first.socket, False, "")
    assert first.socket == str(launcher.source_dir() / "server.sock")


def test_the_child_knows_its_spec_and_holds_three_descriptors(launcher: Launcher) -> None:
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)
    try:
        launcher.start(sync_interval_s=7.0)
    finally:
        os.close(read_end)
        os.close(write_end)
    seen = json.loads((launcher.source_dir() / "seen.json").read_text())
    assert seen["spec"]["sync_interval_s"] == 7.0
    assert seen["spec"]["cache_dir"] == str(launcher.source_dir() / "cache")
    # std streams, the listener, its wake-up pipe, and the listing itself; locks until it is ready
    locks = {str(fd) for fd in seen["spec"]["launch_fds"]}
    assert len(locks) == 2
    assert len(set(seen["open"]) - locks) <= 8
    title = Path(f"/proc/{launcher.pid('serve')}/cmdline").read_bytes()
    assert b"bucket" not in title


def test_another_source_joins_by_the_cache_directory(launcher: Launcher) -> None:
    cache = str(launcher.root / "cache")
    first = launcher.start(cache_dir=cache)
    second = launcher.start(url="s3://other", cache_dir=cache)
    assert second == (first.socket, False, "")


def test_another_cache_directory_is_said_to_be_ignored(launcher: Launcher) -> None:
    launcher.start()
    again = launcher.start(cache_dir=str(launcher.root / "cache"))
    assert not again.started
    assert "--cache-dir is ignored" in again.warning


def test_two_mounts_at_once_share_one_server(launcher: Launcher) -> None:
    found: list[processes.Server] = []
    threads = [threading.Thread(target=lambda: found.append(launcher.start())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(server.started for server in found) == [False, False, False, True]


def test_a_dead_servers_pointer_is_passed_over(launcher: Launcher) -> None:
    launcher.start()
    pid = launcher.pid("serve")
    os.kill(pid, signal.SIGKILL)
    assert ended(pid)
    assert launcher.start().started
    assert launcher.pid("serve") != pid


def test_an_ended_server_leaves_no_zombie(launcher: Launcher) -> None:
    launcher.start()
    pid = launcher.pid("serve")
    [reaper] = [t for t in threading.enumerate() if t.name == f"reap-{pid}"]
    os.kill(pid, signal.SIGKILL)
    reaper.join(10)
    assert not Path(f"/proc/{pid}").exists()


def test_a_pointer_to_a_reused_pid_is_passed_over(launcher: Launcher) -> None:
    with subprocess.Popen(["/bin/sleep", "60"]) as stranger:
        pointer = state.Pointer(str(launcher.source_dir() / "server.sock"), stranger.pid)
        state.write_pointer(launcher.source_dir(), pointer)
        assert launcher.start().started
        stranger.kill()


def test_a_pointer_to_a_pid_of_another_process_of_cachefs_is_passed_over(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "SETTLE_WAIT_S", 0.0)
    with process_of_cachefs() as stranger:
        socket = str(launcher.source_dir() / "server.sock")
        pointer = state.Pointer(socket, stranger.pid, born=birth_of(os.getpid()))
        state.write_pointer(launcher.source_dir(), pointer)
        assert launcher.start().started


def test_a_server_that_hangs_is_named(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "SETTLE_WAIT_S", 0.0)
    pointer = state.Pointer(str(launcher.source_dir() / "server.sock"), os.getpid())
    state.write_pointer(launcher.source_dir(), pointer)
    monkeypatch.setattr(ProcessId, "lives", lambda process: process.pid == os.getpid())
    with pytest.raises(errors.Unreachable, match=f"pid {os.getpid()}"):
        launcher.start()


def test_a_typed_failure_arrives_and_nothing_runs(launcher: Launcher) -> None:
    with pytest.raises(errors.NotFound) as caught:
        launcher.start("fail")
    assert caught.value.one_line() == "s3://bucket: no such bucket; check the name"
    assert ended(launcher.pid("fail"))


def test_a_death_is_reported_with_its_last_words(launcher: Launcher) -> None:
    with pytest.raises(errors.CacheFSError) as caught:
        launcher.start("die")
    line = caught.value.one_line()
    assert "ended before it was ready (status 1): last words; see " in line
    assert line.endswith("server.err")


def test_junk_instead_of_an_answer(launcher: Launcher) -> None:
    with pytest.raises(errors.CacheFSError, match="ended before it was ready"):
        launcher.start("junk")


def test_a_signal_while_a_child_is_started_ends_it(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawn, pids = processes._spawn, list[int]()

    def spawn_and_interrupt(*arguments: Any) -> subprocess.Popen[bytes]:
        process = spawn(*arguments)
        pids.append(process.pid)
        signal.raise_signal(signal.SIGINT)  # as Ctrl-C before anybody knows the child
        return process

    monkeypatch.setattr(processes, "_spawn", spawn_and_interrupt)
    # A shell starts what runs in the background with SIGINT ignored.
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            launcher.start("hang")
    finally:
        signal.signal(signal.SIGINT, former)
    assert ended(pids[0])


def test_a_child_that_hangs_is_ended(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    spawn, pid_file = processes._spawn, launcher.home / "pid-hang"

    def spawn_and_let_it_run(*arguments: Any) -> subprocess.Popen[bytes]:
        process = spawn(*arguments)
        wait_until(lambda: pid_file.exists() and pid_file.read_text() != "", "the child runs")
        return process

    monkeypatch.setattr(processes, "_spawn", spawn_and_let_it_run)
    monkeypatch.setattr(processes, "SERVER_START_S", 0.05)
    with pytest.raises(errors.DeadlineExceeded):
        launcher.start("hang", origin_deadline_s=0.05)
    assert ended(launcher.pid("hang"))


def test_a_client_is_started_likewise(launcher: Launcher) -> None:
    spec = ClientSpec(str(launcher.home), "/s", UfsSpec("s3://bucket"), "/mnt/data")
    script = "import sys,os; sys.stdin.buffer.read(); print('{\"pid\": %d}' % os.getpid())"
    started = processes.start_client(spec, False, command=(sys.executable, "-c", script))
    assert processes.wait_child(started.pid) == 0


def test_a_held_launch_lock_is_waited_for_only_so_long(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "LAUNCH_LOCK_WAIT_S", 0.0)
    with processes.launch_lock(launcher.source_dir()), pytest.raises(errors.InUse):
        launcher.start()


def test_a_server_that_keeps_what_it_inherits_holds_no_lock(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version that was installed under a running mount does not know the locks."""
    monkeypatch.setattr(processes, "LAUNCH_LOCK_WAIT_S", 0.0)
    first = launcher.start("old")
    assert first.started
    assert launcher.start() == processes.Server(first.socket, False, "")


def test_a_child_that_is_still_there_after_a_failure_keeps_the_lock(launcher: Launcher) -> None:
    directory = launcher.source_dir()
    with contextlib.suppress(KeyboardInterrupt), processes.launch_lock(directory) as fd:
        duplicate = os.dup(fd)
        raise KeyboardInterrupt
    with open(directory / state.LOCK_NAME) as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(duplicate)
    with processes.launch_lock(directory):
        pass


def test_a_starter_that_is_killed_leaves_one_server(launcher: Launcher) -> None:
    """The next mount waits for the server that is being started, and starts no other."""
    gate = launcher.home / "gate"
    os.mkfifo(gate)
    document = msgspec.msgpack.encode(launcher.spec())
    with subprocess.Popen(
        [sys.executable, "-c", STARTER, SCRIPT], stdin=subprocess.PIPE
    ) as starter:
        assert starter.stdin is not None
        starter.stdin.write(document)
        starter.stdin.close()
        wait_until((launcher.home / "pid-slow").exists, "the server is being started")
        starter.kill()
    found: list[processes.Server] = []
    other = threading.Thread(target=lambda: found.append(launcher.start("serve")))
    other.start()
    gate.write_text("go on")
    other.join(20)
    assert found == [processes.Server(str(launcher.source_dir() / "server.sock"), False, "")]
    assert not (launcher.home / "pid-serve").exists(), "a second server was started"


def test_a_server_that_ends_as_it_starts_frees_the_lock(launcher: Launcher) -> None:
    with pytest.raises(errors.CacheFSError):
        launcher.start("die")
    assert launcher.start().started


def test_a_server_that_hangs_is_replaced_where_that_is_asked_for(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed, stopped as it is; without a limit it is left alone."""
    launcher.start()
    hung = launcher.pid("serve")
    stop(hung)
    monkeypatch.setattr(processes, "SETTLE_WAIT_S", 0.0)
    with pytest.raises(errors.Unreachable):
        launcher.start()
    assert ProcessId(hung).lives()
    command = (sys.executable, SCRIPT, "serve")
    assert ensure_server(launcher.spec(), command=command, hang_limit_s=0.1).started
    assert ended(hung)
    assert launcher.pid("serve") != hung


def test_only_the_process_that_listens_is_ended(launcher: Launcher) -> None:
    """Not another one whose pid stands in the pointer, and no worker of a service manager."""
    server = launcher.start()
    pid = launcher.pid("serve")
    for pointer in (
        state.Pointer(server.socket, os.getpid()),
        state.Pointer(server.socket, pid, stays=True),
    ):
        state.write_pointer(launcher.source_dir(), pointer)
        assert not hung_server.end_listener(server.socket)
    assert ProcessId(pid).lives()
    assert not hung_server.end_listener(str(launcher.root / "nobody.sock"))


def test_the_server_stops_when_told(launcher: Launcher) -> None:
    server = launcher.start()
    with Watch(ProcessId(launcher.pid("serve"))) as watch:
        with BlockingClient.connect(server.socket) as client:
            client.call(m.Detach("test"), 5)
        assert watch.ended(10)


def test_answers_only_where_somebody_listens(tmp_path: Path) -> None:
    pointer = state.Pointer(str(tmp_path / "server.sock"), 1)
    assert not processes.answers(pointer)
    with FakeNode({}).listening(tmp_path / "server.sock"):
        assert processes.answers(pointer)
    assert not processes.answers(pointer)


# ---- the cache directory ----


def statvfs_with(free_bytes: int) -> os.statvfs_result:
    return os.statvfs_result((4096, 4096, 1 << 40, 0, free_bytes // 4096, 0, 0, 0, 0, 255))


@pytest.mark.parametrize(
    ("free_gib", "asked_gib", "expected"),
    [(100, 0, 20 << 30), (10, 0, 8 << 30), (10, 9, 9 << 30), (10, 10, 10 << 30)],
)
def test_cache_size(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    free_gib: int,
    asked_gib: int,
    expected: int,
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: statvfs_with(free_gib << 30))
    assert processes.cache_size(tmp_path, asked_gib << 30) == expected


def test_what_the_cache_holds_counts_as_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").write_bytes(b"x" * (8 << 20))
    os.link(tmp_path / "data" / "a", tmp_path / "pub")
    monkeypatch.setattr(os, "statvfs", lambda path: statvfs_with(4 << 20))
    assert processes.held_bytes(tmp_path) == 8 << 20
    assert processes.cache_size(tmp_path, 12 << 20) == 12 << 20
    assert processes.cache_size(tmp_path, 0) == int(0.8 * (12 << 20))
    with pytest.raises(errors.NoSpace) as caught:
        processes.cache_size(tmp_path, 13 << 20)
    assert "the cache needs 13 MiB, 12 MiB are free" in caught.value.one_line()


def test_unusable_cache_directories(launcher: Launcher, tmp_path: Path) -> None:
    public = tmp_path / "public"
    public.mkdir()
    public.chmod(0o777)
    (tmp_path / "file").write_text("")
    theirs = Path("/")
    if os.geteuid() == 0:
        theirs = tmp_path / "theirs"
        theirs.mkdir()
        os.chown(theirs, 12345, 12345)
    inside = public / "cache"
    cases = {inside: "written by everybody", theirs: "belongs to user"}
    for path, expected in cases.items():
        with pytest.raises(errors.AccessDenied, match=expected):
            launcher.start(cache_dir=str(path))
    with pytest.raises(errors.NotADirectory):
        launcher.start(cache_dir=str(tmp_path / "file"))
    assert list(launcher.home.glob("pid-*")) == []
    assert launcher.start(cache_dir=str(inside), trust_directories=True).started


def test_a_client_starts_its_server_again_whatever_this_version_says_of_its_directory(
    launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upgrade with a stricter rule ends no mount."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    spec = launcher.spec(cache_dir=str(shared / "cache"))
    with pytest.raises(errors.AccessDenied, match="by everybody"):
        ensure_server(spec)
    command = (sys.executable, SCRIPT, "serve")
    started = functools.partial(ensure_server, command=command)
    monkeypatch.setattr(client, "ensure_server", started)
    it = ClientSpec(str(launcher.home), "", spec.source, str(tmp_path / "mnt"), server=spec)
    assert client._find_server(it).started
