"""The life of a supervised mount by the real command line: who is there, every way to end it, what
is cleared when it dies, and who takes over."""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cachefs.cli.commands import take_over
from cachefs.client.blocking import BlockingClient
from cachefs.core.errors import CacheFSError, Unsupported
from cachefs.core.messages import Failure
from cachefs.core.model import UfsSpec
from cachefs.core.mountinfo import read_mounts
from cachefs.core.specs import ClientSpec, Started, SupervisorSpec
from cachefs.fuse.kernel.negotiation import Negotiated
from cachefs.fuse.supervisor import supervisor as shell
from cachefs.fuse.supervisor import upgrades
from cachefs.launcher.state import MountRecord, StateHome
from tests.integration.conftest import Node, is_mounted
from tests.integration.dataset import body
from tests.services.commands import CACHEFS
from tests.services.namespaces import with_fuse_device
from tests.services.processes import is_running, wait_until
from tests.services.unmounting import unmount

MIB = 1 << 20
NOBODY = 65534
LIMIT_S = 60.0
FILES = {"a": body(1, 3 * MIB), "b": body(2, 100_000), "d/c": body(3, 5000)}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    for name, data in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


class Mounted:
    """A mount and the processes that its record names."""

    def __init__(self, node: Node, source: Path, path: Path) -> None:
        self.node = node
        self.source = source
        self.path = path
        self.home = StateHome(str(node.state))
        node.allowed_log.append(r"client|supervisor|server|connection")

    @property
    def record(self) -> MountRecord:
        found = self.home.find_mount(str(self.path))
        assert found is not None, "the mount's record is gone"
        return found

    @property
    def pids(self) -> tuple[int, int]:
        """Of client and supervisor."""
        return self.record.pid, self.record.supervisor

    def next_client(self, before: int) -> int:
        wait_until(lambda: self.record.pid != before, "the next client", LIMIT_S)
        self.node.pids.add(self.record.pid)
        return self.record.pid

    def next_supervisor(self, before: int) -> int:
        wait_until(
            lambda: self.record.supervisor != before and is_running(self.record.supervisor),
            "the next supervisor",
            LIMIT_S,
        )
        self.node.pids.add(self.record.supervisor)
        return self.record.supervisor

    def check(self) -> None:
        for name, data in FILES.items():
            assert (self.path / name).read_bytes() == data, name

    def nothing_is_left(self, pids: tuple[int, ...]) -> None:
        wait_until(lambda: not any(map(is_running, pids)), "its processes end")
        assert not is_mounted(self.path)
        assert self.home.mount_records() == []
        assert self.home.control_sockets() == []

    def everybody(self) -> tuple[int, ...]:
        return tuple(process["pid"] for process in self.node.processes(self.path))

    def kill_both(self) -> None:
        """So that neither sees the other die."""
        pids = self.pids
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                os.kill(pid, number)
        wait_until(lambda: not any(map(is_running, pids)), "both are dead")
        with pytest.raises(OSError) as caught:
            os.listdir(self.path)
        assert caught.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)


@pytest.fixture
def mount(node: Node, source: Path) -> Callable[..., Mounted]:
    def make(*options: str) -> Mounted:
        return Mounted(node, source, node.mount(f"file://{source}", *options))

    return make


# ---- who is there --------------------------------------------------------------------------------


def test_status_names_the_processes_and_the_transport(mount: Callable[..., Mounted]) -> None:
    mounted = mount()
    tree = mounted.node.status(mounted.path)
    roles = {process["role"]: process["pid"] for process in tree["processes"]}
    assert sorted(roles) == ["client", "server", "supervisor"]
    assert (roles["client"], roles["supervisor"]) == mounted.pids
    assert (tree["transport"], tree["passthrough"]) == ("kernel", "yes")
    said = mounted.node.ok("status", mounted.path).splitlines()
    assert any(line.split() == ["transport", "kernel,", "passthrough:", "yes"] for line in said)
    mounted.node.umount(mounted.path)


def test_doctor_names_the_transport(mount: Callable[..., Mounted]) -> None:
    mounted = mount("--passthrough", "off")
    done = mounted.node.run("doctor", "--json")
    found = {row["name"]: row for row in json.loads(done.stdout)}
    line = found[f"mount {mounted.path}"]
    assert line["state"] == "note"
    assert "transport kernel, passthrough: no: it is switched off" in line["detail"]
    assert found["transport"]["detail"] == "auto takes kernel, with passthrough"
    mounted.node.umount(mounted.path)


def test_the_supervisor_is_small(mount: Callable[..., Mounted]) -> None:
    mounted = mount()
    status = Path(f"/proc/{mounted.record.supervisor}/status").read_text()
    anonymous_kib = int(status.split("RssAnon:")[1].split()[0])
    assert anonymous_kib < 24 << 10
    assert "Threads:\t2\n" in status  # its loop, and the writer of its log
    mounted.node.umount(mounted.path)


class Said:
    """In place of the ready descriptor."""

    def __init__(self) -> None:
        self.started: Started | None = None

    def say(self, started: Started) -> None:
        self.started = started


def test_a_mount_whose_session_cannot_start_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that is too old says so after it has mounted."""

    def too_old(fd: int, spec: ClientSpec) -> Negotiated:
        raise Unsupported("this kernel is too old")

    monkeypatch.setattr(shell, "answer_init", too_old)
    mountpoint, said = tmp_path / "mnt", Said()
    mountpoint.mkdir()
    spec = ClientSpec(str(tmp_path / "home"), "/none", UfsSpec("s3://b"), str(mountpoint))
    shell.Supervisor(SupervisorSpec(spec), said)._mount()
    assert said.started is not None
    assert said.started.failure == Failure(Unsupported.code, "this kernel is too old")
    assert not is_mounted(mountpoint)


# ---- ending --------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", [0, 1], ids=["client", "supervisor"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_unmounts(
    mount: Callable[..., Mounted], role: int, number: signal.Signals
) -> None:
    """[S-umount] Nothing is left: no mount, no process, no record, no socket."""
    mounted = mount()
    pids = mounted.everybody()
    os.kill(mounted.pids[role], number)
    mounted.nothing_is_left(pids)


@pytest.mark.parametrize("role", [0, 1], ids=["client", "supervisor"])
def test_a_signal_does_not_wait_for_readers_for_ever(
    mount: Callable[..., Mounted], role: int
) -> None:
    mounted = mount()
    pids = mounted.everybody()
    with (mounted.path / "a").open("rb", buffering=0):
        os.kill(mounted.pids[role], signal.SIGTERM)
        mounted.nothing_is_left(pids)


def test_a_lazy_unmount_ends_with_the_last_open_file(mount: Callable[..., Mounted]) -> None:
    """[S-umount] Also when the client dies meanwhile."""
    mounted = mount()
    pids = mounted.everybody()
    client, supervisor = mounted.pids
    with (mounted.path / "a").open("rb", buffering=0) as file:
        mounted.node.ok("umount", "--lazy", mounted.path)
        assert not is_mounted(mounted.path)
        os.kill(client, signal.SIGKILL)
        wait_until(lambda: not is_running(client), "the client is dead")
        assert os.pread(file.fileno(), MIB, MIB) == FILES["a"][MIB : 2 * MIB]
        assert is_running(supervisor)
    mounted.nothing_is_left(pids)


def children(pid: int) -> set[int]:
    """Those of all threads of a process."""
    texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return {int(child) for text in texts for child in text.split()}


def test_a_mount_that_was_unmounted_lazily_leaves_the_next_one_alone(
    mount: Callable[..., Mounted],
) -> None:
    """Its processes are replaced, but the record and the socket at the mount point are not its."""
    former = mount()
    client, supervisor = former.pids
    with (former.path / "a").open("rb", buffering=0) as file:
        former.node.ok("umount", "--lazy", former.path)
        mounted = mount()
        pids = mounted.pids
        os.kill(client, signal.SIGKILL)
        [successor] = wait_until(lambda: children(supervisor) - {client}, "the next client")
        assert os.pread(file.fileno(), MIB, MIB) == FILES["a"][MIB : 2 * MIB]
        os.kill(supervisor, signal.SIGKILL)
        [next_supervisor] = wait_until(lambda: children(successor), "the next supervisor")
        former.node.pids |= {successor, next_supervisor}
        line = f"supervising the client {successor}"
        wait_until(lambda: line in former.node.logs(), "it has taken over")
        assert mounted.pids == pids
        mounted.node.ok("mount", "--upgrade", mounted.path)
        assert mounted.next_client(pids[0]) not in (client, successor)
        unmount(mounted.path)
    wait_until(lambda: not any(map(is_running, (successor, next_supervisor))), "the former ends")


def test_unmounted_while_the_client_is_being_replaced(mount: Callable[..., Mounted]) -> None:
    mounted = mount()
    pids = mounted.everybody()
    os.kill(mounted.record.pid, signal.SIGKILL)
    mounted.node.ok("umount", mounted.path)
    mounted.nothing_is_left(pids)


# ---- dying ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["mount", "umount", "doctor"])
def test_a_dead_mount_is_cleared(mount: Callable[..., Mounted], how: str) -> None:
    """[S-crash] Client and supervisor killed at once: whichever command comes next clears it."""
    mounted = mount()
    node, pids = mounted.node, mounted.everybody()
    mounted.kill_both()
    state = node.status(mounted.path)["state"]
    assert state == "dead"
    if how == "mount":
        node.ok("mount", f"file://{mounted.source}", mounted.path)
        mounted.check()
        pids += mounted.everybody()
        node.umount(mounted.path)
    elif how == "umount":
        node.ok("umount", mounted.path)
    else:
        assert node.run("doctor").returncode == 1
        assert f"mount {mounted.path}" in node.run("doctor", "--fix").stdout
    assert not is_mounted(mounted.path)
    node.run("doctor", "--fix")
    mounted.nothing_is_left(())
    for pid in set(pids):  # the server waits a while for a client that broke off
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


@pytest.mark.parametrize("role", [0, 1], ids=["client", "supervisor"])
def test_a_file_system_that_lies_over_the_mount_stays(
    mount: Callable[..., Mounted], role: int
) -> None:
    """Whoever takes over knows which of the two is its mount."""
    mounted = mount()
    subprocess.run(["mount", "-t", "tmpfs", "over", mounted.path], check=True)
    try:
        before = mounted.pids
        os.kill(before[role], signal.SIGKILL)
        (mounted.next_client, mounted.next_supervisor)[role](before[role])
        pids = mounted.pids
        os.kill(pids[role], signal.SIGTERM)
        wait_until(lambda: not any(map(is_running, pids)), "both processes end")
        over = read_mounts().at(str(mounted.path))
        assert over is not None
        assert over.fstype == "tmpfs"
    finally:
        subprocess.run(["umount", mounted.path], check=True)


def test_deaths_in_a_row_end_the_mount(mount: Callable[..., Mounted]) -> None:
    """Whoever waits gets an error, nobody hangs, and nothing is left."""
    mounted = mount()
    pids = mounted.everybody()
    supervisor = mounted.record.supervisor
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children")

    gone = threading.Event()

    def read_until_an_error() -> int:
        """ENOENT: the mount went while it was not asking, and below is no such name either."""
        while True:
            is_last = gone.is_set()
            try:
                os.stat(mounted.path / "nobody knows this name")
            except OSError as err:
                if err.errno != errno.ENOENT or is_last:
                    return err.errno or 0

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read_until_an_error) for _ in range(2)]

        def crash() -> bool:
            with contextlib.suppress(OSError):
                for pid in children.read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGSEGV)
            return not is_running(supervisor)

        wait_until(crash, "the supervisor gives up", LIMIT_S)
        gone.set()
        errnos = {reader.result(LIMIT_S) for reader in readers}
    # The mount point below is empty, so a name is sought there as soon as the mount is gone.
    assert errnos <= {errno.ENOTCONN, errno.ECONNABORTED, errno.ENOENT}
    mounted.nothing_is_left(pids)


def test_a_stopped_client_is_replaced(mount: Callable[..., Mounted]) -> None:
    mounted = mount("--heartbeat-timeout", "2s")
    client = mounted.record.pid
    os.kill(client, signal.SIGSTOP)
    mounted.check()
    assert mounted.next_client(client) != client
    mounted.node.umount(mounted.path)


def test_a_client_that_hangs_leaves_its_stacks_in_the_log(mount: Callable[..., Mounted]) -> None:
    """It waits for a lock that somebody holds: its loop does not run, so its heart stands still."""
    mounted = mount("--heartbeat-timeout", "2s")
    client, supervisor = mounted.pids
    log = next(mounted.node.state.glob("sources/*/log/client-*.log"))
    lock = os.open(mounted.node.state / "mounts", os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.kill(supervisor, signal.SIGKILL)  # the next one is recorded, under that lock
        wait_until(lambda: "_locked_dir" in log.read_text(), "stacks", LIMIT_S)
        wait_until(lambda: not is_running(client), "it is killed", LIMIT_S)
    finally:
        os.close(lock)
    mounted.next_client(client)
    mounted.check()
    assert "most recent call first" in log.read_text()
    mounted.node.umount(mounted.path)


@pytest.mark.parametrize("first", [0, 1], ids=["client first", "supervisor first"])
def test_both_killed_one_after_the_other(mount: Callable[..., Mounted], first: int) -> None:
    """The one that is left has started the other one anew, again and again."""
    mounted = mount()
    for _ in range(2):
        client, supervisor = mounted.pids
        if first == 0:
            os.kill(client, signal.SIGKILL)
            mounted.next_client(client)
            os.kill(supervisor, signal.SIGKILL)
            mounted.next_supervisor(supervisor)
        else:
            os.kill(supervisor, signal.SIGKILL)
            mounted.next_supervisor(supervisor)
            os.kill(client, signal.SIGKILL)
            mounted.next_client(client)
        mounted.check()
    mounted.node.umount(mounted.path)


# ---- upgrades ------------------------------------------------------------------------------------


def test_an_upgrade_says_who_serves(mount: Callable[..., Mounted]) -> None:
    mounted = mount()
    client, supervisor = mounted.pids
    with (mounted.path / "a").open("rb", buffering=0) as file:
        said = json.loads(mounted.node.ok("mount", "--upgrade", mounted.path, "--json"))
        assert mounted.next_client(client) == said["pid"]
        mounted.next_supervisor(supervisor)
        assert file.read(3 * MIB) == FILES["a"]
    wait_until(lambda: not is_running(client), "the old client ends")
    wait_until(lambda: not is_running(supervisor), "the old supervisor ends")
    assert mounted.node.status(mounted.path)["mounts"][0]["pid"] == said["pid"]
    mounted.node.umount(mounted.path)


def test_an_upgrade_renews_a_server_of_another_version(
    mount: Callable[..., Mounted], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server says the version that is installed, so that the command is made another one. A
    reader goes on meanwhile."""
    mounted = mount()
    record = mounted.record
    with BlockingClient.connect(record.socket) as server:
        old = server.welcome.pid
    mounted.node.ok("mount", "--upgrade", mounted.path)
    with BlockingClient.connect(record.socket) as server:
        assert server.welcome.pid == old, "a server of this version goes on"
    with (mounted.path / "a").open("rb", buffering=0) as file:
        take_over.renew_server(record)
        assert file.read(3 * MIB) == FILES["a"]
    with BlockingClient.connect(record.socket) as server:
        assert server.welcome.pid != old
    assert not is_running(old)
    mounted.check()
    done = take_over.Upgraded(str(mounted.path))
    monkeypatch.setattr("cachefs.__version__", "99.0")
    take_over._renew(record, done)
    assert "its server is of version" in done.note, "it was started by a client of that version"
    mounted.check()
    mounted.node.umount(mounted.path)


def test_an_upgrade_of_all_mounts_has_a_line_for_each(
    node: Node, source: Path, mount: Callable[..., Mounted]
) -> None:
    assert node.ok("mount", "--upgrade", "--all") == "nothing is mounted\n"
    mounted = mount()
    other = node.mount(f"file://{source}", "--transport", "pyfuse3", name="other")
    client, _ = mounted.pids
    done = node.run("mount", "--upgrade", "--all")
    assert done.returncode == 1
    assert done.stdout.startswith(f"OK, {mounted.path} is served by version")
    assert len(done.stdout.splitlines()) == len(done.stderr.splitlines()) == 1
    assert f"{other}: this mount has no supervisor" in done.stderr
    mounted.next_client(client)
    node.umount(other)
    (row,) = json.loads(node.ok("mount", "--upgrade", "--all", "--json"))
    assert (row["mountpoint"], row["error"]) == (str(mounted.path), "")
    mounted.check()
    node.umount(mounted.path)
    assert "--all is for --upgrade" in node.fails("mount", "--all")


@pytest.mark.parametrize("python", ["/bin/false", "/nowhere/python", "/etc/passwd"])
def test_a_new_version_that_does_not_work_changes_nothing(
    mount: Callable[..., Mounted], python: str
) -> None:
    mounted = mount()
    pids = mounted.pids
    with pytest.raises(CacheFSError) as caught:
        upgrades.ask(mounted.home, str(mounted.path), python)
    assert caught.value.cause
    mounted.check()
    assert mounted.pids == pids
    mounted.node.ok("mount", "--upgrade", mounted.path)  # the next one does
    mounted.next_supervisor(pids[1])
    mounted.check()
    mounted.node.umount(mounted.path)


def test_no_upgrade_of_a_mount_without_a_supervisor(mount: Callable[..., Mounted]) -> None:
    mounted = mount("--transport", "pyfuse3")
    line = mounted.node.fails("mount", "--upgrade", mounted.path)
    assert "has no supervisor" in line
    mounted.check()
    mounted.node.umount(mounted.path)


# ---- in the foreground ---------------------------------------------------------------------------


@pytest.fixture
def front(node: Node, source: Path) -> Iterator[tuple[Mounted, subprocess.Popen[bytes]]]:
    path = node.mountpoint()
    node.mountpoints.append(path)
    with subprocess.Popen(
        [CACHEFS, "mount", "-f", f"file://{source}", str(path)],
        env=node.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"OK, ")
        mounted = Mounted(node, source, path)
        try:
            yield mounted, process
        finally:
            if process.poll() is None:
                process.kill()
            subprocess.run(["umount", "-l", str(path)], check=False, capture_output=True)
            process.communicate(timeout=LIMIT_S)  # the mount's processes have its pipes, too


def test_foreground_outlives_its_supervisors(
    front: tuple[Mounted, subprocess.Popen[bytes]],
) -> None:
    """It stays in front whoever supervises the mount, and an interrupt unmounts."""
    mounted, process = front
    pids = mounted.everybody()
    for _ in range(2):
        client, supervisor = mounted.pids
        os.kill(supervisor, signal.SIGKILL)
        mounted.next_supervisor(supervisor)
        os.kill(client, signal.SIGKILL)
        mounted.next_client(client)
        mounted.check()
        assert process.poll() is None
    pids += mounted.everybody()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    mounted.nothing_is_left(pids)


def test_an_interrupt_right_after_the_mount_was_reported(
    front: tuple[Mounted, subprocess.Popen[bytes]],
) -> None:
    mounted, process = front
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    mounted.nothing_is_left(())


def test_an_interrupt_right_after_the_supervisor_was_lost(
    front: tuple[Mounted, subprocess.Popen[bytes]],
) -> None:
    mounted, process = front
    pids = mounted.everybody()
    os.kill(mounted.record.supervisor, signal.SIGKILL)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    mounted.nothing_is_left(pids)


def test_foreground_ends_with_the_mount(
    front: tuple[Mounted, subprocess.Popen[bytes]],
) -> None:
    mounted, process = front
    pids = mounted.everybody()
    line = mounted.node.fails("mount", "--upgrade", mounted.path)
    assert "runs in the foreground" in line
    unmount(mounted.path)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    mounted.nothing_is_left(pids)


# ---- an ordinary user ----------------------------------------------------------------------------


def test_an_ordinary_user(source: Path) -> None:
    """Mounts through fusermount3: no passthrough, and it says why; the rest is as for root. The
    device is theirs to open in a mount namespace of the test's own."""
    root = Path(tempfile.mkdtemp(prefix="cachefs-user-"))
    try:
        for name in ("home", "mnt"):
            (root / name).mkdir()
            os.chown(root / name, NOBODY, NOBODY)
        root.chmod(0o755)
        os.mknod(root / "fuse", 0o020666, os.makedev(10, 229))
        os.chmod(root / "fuse", 0o666)
        script = Path(__file__).with_name("ordinary_user.py")
        user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        user += ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]
        command = [*user, sys.executable, "-I", str(script), CACHEFS, f"file://{source}"]
        command += [str(root / "mnt"), str(root / "home"), *FILES]
        done = subprocess.run(
            with_fuse_device(root / "fuse", *command),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        shutil.rmtree(root)
    seen = json.loads(done.stdout)
    sums = [sum(data) for data in FILES.values()]
    assert seen["status"]["transport"] == "kernel"
    assert seen["status"]["passthrough"] == "no: it needs CAP_SYS_ADMIN (root)"
    assert seen["before"] == seen["after"] == sums
    assert seen["held"] == sums[0]
    assert seen["replaced"]
    found = {row["name"]: row for row in seen["doctor"]}
    assert found["transport"]["detail"] == "auto takes kernel, without passthrough"
    assert "CAP_SYS_ADMIN" in found["transport"]["remedy"]
