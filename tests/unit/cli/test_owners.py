"""Mounts of other users: an ordinary user is told whose a mount is, root finds its record."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from cachefs.cli import detach, owners, umount
from cachefs.cli.mounts import Mount, MountTable
from cachefs.core.errors import AccessDenied
from cachefs.core.model import UfsSpec
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
    table = MountTable([mount_of(0)])
    for module in (umount, detach):
        monkeypatch.setattr(module, "read_mounts", lambda: table)
    monkeypatch.setattr(os, "geteuid", lambda: USER)
    with pytest.raises(AccessDenied) as caught:
        umount.unmount("/mnt/data", home, lazy=False)
    assert caught.value.cause == "it is a mount of user root"
    assert "sudo cachefs umount /mnt/data" in caught.value.remedy


def test_root_finds_the_record_in_the_home_of_its_user(
    home: StateHome, home_of_user: StateHome
) -> None:
    found = owners.find_recorded(mount_of(USER), home)
    assert found is not None
    assert (found.record.mountpoint, found.home.path) == ("/mnt/data", home_of_user.path)
    assert home_of_user.find_mount("/mnt/data") == found.record, "--home of the user works as well"
    assert owners.find_recorded(mount_of(0), home) is None
    assert owners.find_recorded(mount_of(USER, "/mnt/other"), home) is None


def test_an_ordinary_user_does_not_look_into_other_homes(
    home: StateHome, home_of_user: StateHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: USER + 1)
    assert owners.find_recorded(mount_of(USER), home) is None


def test_a_record_that_leads_to_the_socket_of_a_third_user_is_not_taken(
    home: StateHome, home_of_user: StateHome
) -> None:
    (home_of_user.path / "none.sock").touch()  # root's
    assert owners.find_recorded(mount_of(USER), home) is None


def test_status_says_whose_a_mount_without_a_record_is(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = MountTable([mount_of(USER)])
    monkeypatch.setattr("cachefs.cli.status.read_mounts", lambda: table)
    code, out, _ = run("status")
    assert code == 0
    assert "of user nobody, not recorded here" in out
