"""Mounts of other users: an ordinary user is told whose a mount is, root finds its record."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import pwd
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import msgspec
import pytest

from cachefs.cli import detach, owners, paths
from cachefs.cli.commands import health, logs, umount
from cachefs.cli.masters import Masters
from cachefs.cli.session import Target, connected
from cachefs.cli.settings import load_settings
from cachefs.client.blocking import BlockingClient
from cachefs.core import messages as m
from cachefs.core.config import Config
from cachefs.core.errors import AccessDenied, InUse, NotFound, Unreachable
from cachefs.core.model import UfsSpec
from cachefs.core.mountinfo import Mount, Mounts
from cachefs.launcher.state import MountRecord, StateHome

USER = 65534
Run = Callable[..., tuple[int, str, str]]


def mount_of(uid: int, mountpoint: str = "/mnt/data") -> Mount:
    return Mount("0:50", "/", mountpoint, "fuse.cachefs", "s3://b", (f"user_id={uid}",))


@pytest.fixture
def home_of_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateHome:
    """The default state home of another user, with a record of /mnt/data."""
    home = StateHome(tmp_path / "user" / ".cache" / "cachefs")
    home.write_mount(MountRecord("/mnt/data", UfsSpec("s3://b"), 1, str(home.path / "none.sock")))
    for path in (home.path, *home.path.rglob("*")):
        os.chown(path, USER, USER)
    passwd = SimpleNamespace(pw_dir=str(tmp_path / "user"), pw_name="trainer")
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: passwd)
    return home


def test_umount_names_the_owner_of_another_users_mount(
    home: StateHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Mounts([mount_of(0)])
    for module in (umount, detach):
        monkeypatch.setattr(module, "read_mounts", lambda: table)
    monkeypatch.setattr(os, "geteuid", lambda: USER)
    with pytest.raises(AccessDenied) as caught:
        umount.unmount("/mnt/data", home, lazy=False)
    assert caught.value.cause == "it is a mount of user root"
    assert caught.value.remedy == "unmount as root: sudo cachefs umount /mnt/data"


def test_root_finds_the_record_in_the_home_of_its_user(
    home: StateHome, home_of_user: StateHome
) -> None:
    found = owners.find_record_and_home(mount_of(USER), home)
    assert found is not None
    assert (found.record.mountpoint, found.home.path) == ("/mnt/data", home_of_user.path)
    assert owners.find_record(mount_of(USER), home_of_user) == found.record, "--home works as well"
    assert owners.find_record_and_home(mount_of(0), home) is None
    assert owners.find_record_and_home(mount_of(USER, "/mnt/other"), home) is None


def test_an_ordinary_user_does_not_look_into_other_homes(
    home: StateHome, home_of_user: StateHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: USER + 1)
    assert owners.find_record_and_home(mount_of(USER), home) is None


def test_a_record_that_leads_to_the_socket_of_a_third_user_is_not_taken(
    home: StateHome, home_of_user: StateHome
) -> None:
    (home_of_user.path / "none.sock").touch()  # root's
    assert owners.find_record_and_home(mount_of(USER), home) is None


def test_status_says_whose_a_mount_without_a_record_is(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Mounts([mount_of(USER)])
    monkeypatch.setattr("cachefs.cli.commands.status.read_mounts", lambda: table)
    code, out, _ = run("status")
    assert code == 0
    assert "of user nobody, not recorded here" in out


# ---- what a hostile user leaves for root ---------------------------------------------------------


def replace_record(home: StateHome, text: str) -> Path:
    """Puts what a user wrote in place of the record."""
    (path,) = (home.path / "mounts").glob("*.json")
    path.write_text(text)
    return path


def test_a_record_says_in_whose_home_it_was_found(
    home: StateHome, home_of_user: StateHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = owners.find_record(mount_of(USER), home)
    assert found is not None
    assert found.owner == USER
    (listed,) = home_of_user.mount_records()
    assert listed.owner == USER
    home.write_mount(msgspec.structs.replace(found, owner=0))
    own = home.find_mount("/mnt/data")
    assert own is not None
    assert own.owner == -1


def test_a_record_of_another_mount_point_is_not_taken(
    home: StateHome, home_of_user: StateHome
) -> None:
    """Root would be told to unmount what the user wrote there."""
    (path,) = (home_of_user.path / "mounts").glob("*.json")
    replace_record(home_of_user, path.read_text().replace("/mnt/data", "/mnt/x; reboot"))
    assert owners.find_record_and_home(mount_of(USER), home) is None
    assert home_of_user.mount_records() == []


@pytest.mark.parametrize("text", ["[" * 500_000, "1" * 500_000, "{", "[]", '{"pid": NaN}'])
def test_a_record_that_is_none_is_passed_over(
    text: str, home: StateHome, home_of_user: StateHome
) -> None:
    replace_record(home_of_user, text)
    assert owners.find_record_and_home(mount_of(USER), home) is None


def test_processes_of_others_in_a_record_are_passed_over(
    home: StateHome, home_of_user: StateHome
) -> None:
    """Root would wait for its own master, and be told to end it."""
    sleeper = subprocess.Popen(["sleep", "600"], user=USER)
    try:
        text = replace_record(home_of_user, "{}")
        own = MountRecord("/mnt/data", UfsSpec("s3://b"), os.getpid(), "/s", supervisor=sleeper.pid)
        text.write_bytes(msgspec.json.encode(own))
        found = owners.find_record(mount_of(USER), home)
        assert found is not None
        assert (found.pid, found.supervisor) == (0, sleeper.pid)
    finally:
        sleeper.kill()
        sleeper.wait()


def test_a_lock_that_is_kept_does_not_hold_up_root(
    home_of_user: StateHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cachefs.launcher.state._CHANGE_S", 0.02)
    fd = os.open(home_of_user.path / "mounts", os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(InUse, match="cannot be removed"):
            home_of_user.remove_mount("/mnt/data", 1)
    finally:
        os.close(fd)


def test_a_server_of_a_third_user_is_not_spoken_with(tmp_path: Path) -> None:
    """The socket was replaced after it was looked at."""
    path = tmp_path / "server.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        with pytest.raises(AccessDenied, match=f"a process of user {os.getuid()} listens"):
            BlockingClient.connect(path, owner=USER)
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.recv(100) == b"", "nothing was asked of it"


@pytest.fixture
def presented(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The URLs of masters that a command connects to."""
    seen: list[str] = []

    def connect(url: str, chosen: Config) -> NoReturn:
        seen.append(url)
        raise Unreachable("a test connects to no master")

    monkeypatch.setattr("cachefs.cli.clusters.admin_of", connect)
    return seen


def test_the_token_of_root_does_not_go_to_a_master_that_a_user_names(
    presented: list[str], tmp_path: Path
) -> None:
    """A user who mounts `cachefs://THEIRS` would read the cluster's token there."""
    theirs = MountRecord("/mnt/data", UfsSpec("cachefs://10.0.0.9:1/p"), 1, "/s", owner=USER)
    own = msgspec.structs.replace(theirs, owner=-1)
    flags = {"token_file": str(tmp_path / "token")}
    chosen = load_settings(flags, None)
    health.of_mount_tree(theirs, {}, Masters(chosen))
    with pytest.raises(AccessDenied, match="the token is not sent to it") as caught:
        paths.in_cluster(Target(theirs, b""), chosen)
    assert "--master" in caught.value.remedy
    assert presented == []
    health.of_mount_tree(own, {}, Masters(chosen))
    assert presented == [own.source.url]
    named = load_settings({**flags, "master": "master:19998"}, None)
    place = paths.in_cluster(Target(theirs, b""), named)
    assert place is not None
    assert place.url == "http://master:19998"


def test_a_document_of_a_users_server_says_nothing_of_the_mount(
    home: StateHome, home_of_user: StateHome, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does one of other types break the list of all mounts, or write to the terminal."""
    table = Mounts([mount_of(USER), mount_of(0, "/mnt/own")])
    monkeypatch.setattr("cachefs.cli.commands.status.read_mounts", lambda: table)
    monkeypatch.setattr("cachefs.cli.commands.status.is_unserved", lambda _, record: False)
    odd: dict[str, object] = {
        "source": "cachefs://10.0.0.9:1",
        "mountpoint": "\x1b[2J",
        "master": 1,
    }

    @contextlib.contextmanager
    def server(record: MountRecord) -> Iterator[object]:
        yield SimpleNamespace(call=lambda *_: m.StatusReply(odd))

    monkeypatch.setattr("cachefs.cli.commands.health.connected", server)
    for more in ({}, {"mounts": 3}, {"cache": {"tiers": 7}}, {"sources": ["\x1b]0;x\x07"]}):
        odd |= more
        code, out, err = run("status")
        assert code == 0, err
        assert out.startswith("/mnt/data  s3://b  ")
        assert "/mnt/own" in out
        assert "\x1b" not in out
    (first, _) = json.loads(run("status", "--json")[1])
    assert (first["mountpoint"], first["source"]) == ("/mnt/data", "s3://b")


def log_of(tmp_path: Path) -> tuple[MountRecord, Path]:
    source = tmp_path / "sources" / "x"
    (source / "log").mkdir(parents=True)
    record = MountRecord("/mnt/data", UfsSpec("s3://b"), 1, str(source / "server.sock"))
    return record, source / "log" / "server.log"


def test_a_log_that_is_no_file_is_not_read(tmp_path: Path) -> None:
    """A pipe would keep root waiting for ever, and /dev/zero has no end."""
    _, log = log_of(tmp_path)
    os.mkfifo(log)
    with pytest.raises(NotFound, match="not a file"):
        logs.last_lines(log, 5)
    log.unlink()
    log.symlink_to("/dev/zero")
    with pytest.raises(OSError, match="symbolic"):
        logs.last_lines(log, 5)
    with pytest.raises(OSError, match="symbolic"):
        list(itertools.islice(logs.new_lines(log), 1))


def test_a_log_is_read_from_near_its_end_and_shown_without_control_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    record, log = log_of(tmp_path)
    log.write_bytes(b"")
    os.truncate(log, 1 << 40)  # sparse
    with log.open("ab") as file:
        file.write(b"\nlast \x1b[31mline\n")
    monkeypatch.setattr(logs, "MOST_BYTES", 1000)
    target = Target(record, b"")
    monkeypatch.setattr(logs, "find_target", lambda *_: target)
    code, out, _ = run("logs", "-n", "1", "/mnt/data")
    assert (code, out) == (0, "server: last \\x1b[31mline\n")


@pytest.mark.parametrize("path", ["", "/", "/s", "s", "/tmp/s"])
def test_the_logs_of_a_record_with_a_short_socket(path: str) -> None:
    logs.files_of(MountRecord("/mnt/data", UfsSpec("s3://b"), 1, path))


def test_root_upgrades_no_mount_of_a_user_and_removes_no_cache_of_one(
    home: StateHome, home_of_user: StateHome, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both act by numbers and paths that the user wrote."""
    table = Mounts([mount_of(USER)])
    for module in ("cachefs.cli.commands.take_over", "cachefs.core.mountinfo"):
        monkeypatch.setattr(f"{module}.read_mounts", lambda: table)
    asked: list[str] = []
    monkeypatch.setattr("cachefs.fuse.supervisor.upgrades.ask", lambda *_: asked.append("asked"))
    theirs = str(home_of_user.path)
    for arguments in (["/mnt/data"], ["--all", "--home", theirs], ["/mnt/data", "--home", theirs]):
        code, _, err = run("mount", "--upgrade", *arguments)
        assert code == 1
        assert "it is a mount of user trainer" in err
        assert "sudo -H -u trainer cachefs mount --upgrade /mnt/data" in err
    assert asked == []
    code, _, err = run("cache", "rm", "--unused", "--home", theirs)
    assert code == 1
    assert "it is of user trainer" in err


def test_doctor_of_root_removes_nothing_where_a_users_link_leads(
    home_of_user: StateHome, run: Run, tmp_path: Path
) -> None:
    """A file of this name is taken for a socket that a supervisor left."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "docker.sock").touch()
    mounts = home_of_user.path / "mounts"
    mounts.rename(home_of_user.path / "before")
    mounts.symlink_to(elsewhere)
    run("doctor", "--fix", "--home", str(home_of_user.path))
    assert (elsewhere / "docker.sock").exists()


def test_a_remedy_can_be_pasted_whatever_the_mount_point_is_called() -> None:
    record = MountRecord("/mnt/a; reboot", UfsSpec("s3://b"), 0, "/nowhere/server.sock")
    with pytest.raises(Unreachable) as caught, connected(record):
        pass
    assert caught.value.remedy.endswith("cachefs umount '/mnt/a; reboot'")
