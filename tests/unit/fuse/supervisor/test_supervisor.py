"""The supervisor's process with clients that only speak its language, and without FUSE."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from cachefs.client.sockets import connect_long
from cachefs.core.errors import CacheFSError, Unreachable
from cachefs.core.model import UfsSpec
from cachefs.core.specs import ClientSpec, OrphanedMount, Started, SupervisorSpec
from cachefs.fuse.kernel.negotiation import Negotiated
from cachefs.fuse.kernel.table import TakeoverTable
from cachefs.fuse.supervisor import upgrades
from cachefs.fuse.supervisor import wire as w
from cachefs.launcher.state import MountRecord, StateHome
from tests.services.processes import is_running

HERE = Path(__file__).parent
LIMIT_S = 60.0


class Shell:
    """A supervisor's process; `client(n)` is what the n-th fake client saw."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "clients"
        self.folder.mkdir()
        self.python = root / "python"
        self.python.write_text(
            f'#!/bin/sh\nexec {sys.executable} -I {HERE / "fake_client.py"} {self.folder} "$@"\n'
        )
        self.python.chmod(0o755)
        self.spec = ClientSpec(
            home=str(root / "home"),
            socket=str(root / "no server"),
            source=UfsSpec("s3://b"),
            mountpoint=str(root / "mnt"),
            log_file=str(root / "client-x.log"),
            heartbeat_timeout_s=10.0,
        )
        self.log = root / "supervisor-x.log"
        self.home = StateHome(self.spec.home)
        self.process: subprocess.Popen[bytes] | None = None

    def start(
        self,
        *plan: str,
        cause: str = "",
        adopt: OrphanedMount | None = None,
        heartbeat_timeout_s: float = 10.0,
    ) -> Started:
        (self.folder / "plan").write_text("\n".join(plan))
        spec = msgspec.structs.replace(self.spec, heartbeat_timeout_s=heartbeat_timeout_s)
        fds = (adopt.control_fd, adopt.fuse_fd, adopt.table_fd) if adopt is not None else ()
        self.process = subprocess.Popen(
            [sys.executable, "-I", HERE / "fake_mount.py", self.python, *filter(None, [cause])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=fds,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(msgspec.msgpack.encode(SupervisorSpec(spec, adopt)))
        self.process.stdin.close()
        line = self.process.stdout.read()
        self.process.stdout.close()
        return msgspec.json.decode(line, type=Started)

    def client(self, number: int) -> list[str]:
        try:
            return (self.folder / str(number)).read_text().splitlines()
        except FileNotFoundError:
            return []

    def pid(self, number: int) -> int:
        self.sees(number, "started")
        return int(self.client(number)[0].split()[1])

    def sees(self, number: int, what: str) -> None:
        def seen() -> bool:
            return any(line.startswith(what) for line in self.client(number))

        self.until(seen, f"client {number} sees {what}")

    def until(self, condition: Callable[[], bool], what: str) -> None:
        pause, deadline = threading.Event(), time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline, f"{what}: {self.log.read_text()}"
            pause.wait(0.01)

    def ended(self) -> int:
        assert self.process is not None
        return self.process.wait(LIMIT_S)

    def kill(self, number: int, how: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.pid(number), how)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(LIMIT_S)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    made.close()


def test_a_mount_is_announced_and_ends_when_it_is_asked_to(shell: Shell) -> None:
    started = shell.start()
    assert shell.process is not None
    assert (started.pid, started.warning) == (shell.process.pid, "a warning")
    assert shell.client(0)[0].endswith("False"), "no successor"
    shell.sees(0, "serve False 2")
    assert len(shell.home.control_sockets()) == 1
    shell.process.terminate()
    assert shell.ended() == 0
    assert shell.client(0)[-1] == "SIGTERM"
    assert shell.home.control_sockets() == []


@pytest.mark.parametrize(
    ("plan", "cause", "said"),
    [
        ("dies", "", "ended before it answered"),
        ("fails", "", "no such bucket"),
        ("good", "no room", "no room"),
    ],
)
def test_a_mount_that_cannot_be(shell: Shell, plan: str, cause: str, said: str) -> None:
    started = shell.start(plan, cause=cause)
    assert started.failure is not None
    assert said in started.failure.cause
    assert shell.ended() == 1
    shell.until(lambda: not is_running(shell.pid(0)), "its client ends")


def test_an_interpreter_that_is_not_there(shell: Shell) -> None:
    shell.python.unlink()
    started = shell.start()
    assert started.failure is not None
    assert "No such file" in started.failure.cause
    assert shell.ended() == 1


def test_deaths_are_followed(shell: Shell) -> None:
    shell.start("good", "dies", "good", "good")
    shell.kill(0)
    shell.sees(2, "serve True 2")
    assert shell.client(2)[0].endswith("True"), "a successor"
    assert [shell.client(number)[1] for number in range(3)] == ["held False", *["held True"] * 2]
    shell.kill(2, signal.SIGSEGV)
    shell.sees(3, "serve True 2")


def test_a_client_that_ends_well_ends_it_all(shell: Shell) -> None:
    shell.start()
    shell.kill(0, signal.SIGTERM)
    assert shell.ended() == 0
    assert shell.client(1) == []


def test_one_that_hangs_is_asked_for_its_stacks_and_killed(shell: Shell) -> None:
    shell.start("hangs", heartbeat_timeout_s=0.5)
    shell.sees(1, "serve True 2")
    assert "SIGUSR2" in shell.client(0)
    assert not is_running(shell.pid(0))


def test_one_that_is_stopped_is_killed(shell: Shell) -> None:
    shell.start(heartbeat_timeout_s=0.5)
    shell.kill(0, signal.SIGSTOP)
    shell.sees(1, "serve True 2")
    assert not is_running(shell.pid(0))


def test_what_it_does_not_know_is_ignored(shell: Shell) -> None:
    assert shell.start("garbage").failure is None
    shell.sees(0, "serve")


def test_deaths_in_a_row_end_it(shell: Shell) -> None:
    """The record goes as well, whoever of the dead wrote it."""
    shell.start("good", *["dies"] * 30)
    assert shell.process is not None
    supervisor = shell.process.pid
    record = MountRecord.of(shell.spec, shell.pid(0), supervisor)
    shell.home.write_mount(record)
    shell.kill(0)
    assert shell.ended() == 1
    assert shell.home.mount_records() == []
    assert "clients died in a row" in shell.log.read_text()


def test_the_record_of_the_next_mount_is_kept(shell: Shell, tmp_path: Path) -> None:
    shell.start()
    code = f"# {tmp_path / 'cachefs-like'}\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1) as other:
        assert other.stdout is not None
        other.stdout.readline()  # until exec is through, its command line is empty
        shell.home.write_mount(MountRecord.of(shell.spec, other.pid))
        shell.kill(0, signal.SIGTERM)
        assert shell.ended() == 0
        assert [record.pid for record in shell.home.mount_records()] == [other.pid]
        other.kill()


# ---- upgrades ------------------------------------------------------------------------------------


def test_an_upgrade(shell: Shell) -> None:
    shell.start()
    pid = upgrades.ask(shell.home, shell.spec.mountpoint, str(shell.python))
    assert pid == shell.pid(1)
    assert "Retire" in shell.client(0)
    assert shell.ended() == 0
    shell.sees(1, "Leaving")
    shell.sees(1, "NoneType")  # it sees that the supervisor has left: the real one starts another
    assert "serve True 2" in shell.client(1)


def test_an_upgrade_waits_for_a_supervisor_that_is_being_started(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the place of one that was lost."""
    starts: list[Callable[[], object]] = [shell.start]
    monkeypatch.setattr(upgrades, "_pause", lambda: starts.pop()())
    pid = upgrades.ask(shell.home, shell.spec.mountpoint, str(shell.python))
    assert pid == shell.pid(1)
    assert shell.ended() == 0


def test_an_upgrade_that_nobody_hears_ends(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrades, "_pause", lambda: None)
    with pytest.raises(Unreachable, match="does not answer"):
        upgrades.ask(shell.home, shell.spec.mountpoint, str(shell.python))


@pytest.mark.parametrize("plan", ["dies", "fails"])
def test_an_upgrade_that_fails_changes_nothing(shell: Shell, plan: str) -> None:
    shell.start("good", plan)
    with pytest.raises(CacheFSError):
        upgrades.ask(shell.home, shell.spec.mountpoint, str(shell.python))
    assert "Retire" not in shell.client(0)
    assert is_running(shell.pid(0))
    assert upgrades.ask(shell.home, shell.spec.mountpoint, str(shell.python)) == shell.pid(2)


def test_questions_that_are_none(shell: Shell) -> None:
    """Whoever says something else, or nothing, is answered, and nobody else suffers."""
    shell.start()
    (path,) = shell.home.control_sockets()
    assert upgrades.is_listening(str(path))
    for question in (b"\xc1", b""):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            connect_long(sock, str(path))
            sock.settimeout(LIMIT_S)
            if question:
                sock.send(question)
            else:
                w.send(sock, w.Beat())
            note, _ = w.receive(sock)
            assert isinstance(note, w.Upgraded)
            assert note.failure is not None
    assert upgrades.ask(shell.home, shell.spec.mountpoint, str(shell.python)) == shell.pid(1)


def test_nobody_to_ask(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrades, "START_S", 0.2)
    with pytest.raises(CacheFSError) as caught:
        upgrades.ask(shell.home, shell.spec.mountpoint, sys.executable)
    assert "does not answer" in caught.value.cause


# ---- after a lost supervisor ---------------------------------------------------------------------


class Orphan:
    """A client whose supervisor was lost, with the descriptors that it hands to the next."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[ours.fileno()]
        )
        ours.close()
        self.fuse_fd = os.eventfd(0)
        self.table = TakeoverTable.create()
        values = w.encode_negotiated(Negotiated(41, 0, 4096, 1, True, True))
        self.adopted = OrphanedMount(
            self.process.pid, self.theirs.fileno(), self.fuse_fd, self.table.fd, values
        )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.theirs.close()
        os.close(self.fuse_fd)


@pytest.fixture
def orphan() -> Iterator[Orphan]:
    made = Orphan()
    yield made
    made.close()


def test_a_running_client_is_adopted(shell: Shell, orphan: Orphan) -> None:
    assert shell.start(adopt=orphan.adopted).failure is None
    assert shell.client(0) == []
    orphan.kill()
    shell.sees(0, "serve True 2")


def test_one_that_died_before_it_was_adopted_is_followed(shell: Shell, orphan: Orphan) -> None:
    orphan.kill()
    shell.start(adopt=orphan.adopted)
    shell.sees(0, "serve True 2")
