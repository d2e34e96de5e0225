"""Directories of caches that others could change or replace."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from cachefs.cli.commands import mount
from cachefs.cli.settings import load_settings
from cachefs.core.errors import AccessDenied
from cachefs.core.model import UfsSpec
from cachefs.core.specs import ServerSpec, WorkerSpec
from cachefs.launcher import directories
from cachefs.launcher.directories import check_own
from cachefs.launcher.node import NodeProcess
from cachefs.launcher.processes import ensure_server
from cachefs.launcher.state import private_dir

FLAGS: Final = {"foreground": False, "debug": False}


@pytest.fixture
def above(tmp_path: Path) -> Path:
    """Of the same user, with a directory `tier` in it."""
    tmp_path.chmod(0o755)
    (tmp_path / "tier").mkdir(mode=0o700)
    return tmp_path


def refused(path: Path, cause: str) -> None:
    with pytest.raises(AccessDenied, match=cause) as caught:
        check_own(path)
    assert "chmod go-w" in caught.value.remedy
    assert "--trust-directories" in caught.value.remedy


def test_a_directory_of_ones_own_below_a_sticky_one(above: Path) -> None:
    check_own(above / "tier")
    check_own(above / "to" / "be" / "made")
    above.chmod(0o1777)
    check_own(above / "tier")
    check_own(above / "new")


@pytest.mark.parametrize("mode", [0o757, 0o777, 0o1777, 0o770])
def test_a_directory_that_others_may_write_is_closed_to_them(above: Path, mode: int) -> None:
    """As the root of a new tmpfs is. What others have put into it before is not taken over."""
    (above / "tier" / "mine").mkdir()
    (above / "tier").chmod(mode)
    check_own(above / "tier")
    assert stat.S_IMODE((above / "tier").stat().st_mode) == 0o700
    (above / "tier").chmod(mode)
    (above / "tier" / "planted").write_bytes(b"TIER")
    os.chown(above / "tier" / "planted", 65534, 65534)
    refused(above / "tier", "'planted' of another user")
    assert stat.S_IMODE((above / "tier").stat().st_mode) == mode, "it may be in use"


def test_the_directories_of_all_programs_are_never_closed(
    above: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As /tmp, which belongs to root."""
    monkeypatch.setattr(directories, "SHARED", (str(above / "tier"),))
    (above / "tier").chmod(0o1777)
    (above / "link").symlink_to("tier")
    for path in (above / "tier", above / "link"):
        with pytest.raises(AccessDenied, match="is shared by all users") as caught:
            check_own(path)
        assert "chmod" not in caught.value.remedy
    with pytest.raises(AccessDenied, match="is shared by all users"):
        private_dir(above / "tier")
    assert stat.S_IMODE((above / "tier").stat().st_mode) == 0o1777
    check_own(above / "tier" / "mine")


def test_a_link_of_another_user_in_a_sticky_directory(above: Path) -> None:
    """Where the kernel follows it. A link that root has put there is followed."""
    shared = above / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "link").symlink_to(above / "tier")
    check_own(shared / "link")
    os.lchown(shared / "link", 65534, 65534)
    with pytest.raises(AccessDenied, match="the link belongs to user 65534"):
        check_own(shared / "link" / "deeper")
    assert list((above / "tier").iterdir()) == []


def test_a_directory_below_one_that_others_may_write(above: Path) -> None:
    """They could put another one in its place."""
    above.chmod(0o777)
    refused(above / "tier", "by everybody")
    refused(above / "to" / "be" / "made", "by everybody")


def test_a_directory_that_a_group_may_write(above: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = [False]
    monkeypatch.setattr("cachefs.launcher.directories._is_of_one", lambda gid: alone[0])
    above.chmod(0o775)
    refused(above / "tier", f"group {os.getegid()}")
    alone[0] = True
    check_own(above / "tier")


def test_a_command_that_is_shown_runs_no_other(above: Path) -> None:
    """Another user may have chosen the name of a directory above."""
    odd = above / "a; touch b"
    odd.mkdir()
    odd.chmod(0o777)
    with pytest.raises(AccessDenied) as caught:
        check_own(odd / "tier")
    assert f"chmod go-w '{odd}'," in caught.value.remedy


def test_a_directory_of_another_user(above: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    refused(above / "tier", "belongs to user")


def test_a_link_in_a_directory_that_others_may_write(above: Path) -> None:
    """They could point it elsewhere."""
    shared = above / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (shared / "link").symlink_to(above / "tier")
    refused(shared / "link", "by everybody")
    (above / "into").symlink_to(shared)
    refused(above / "into" / "tier", "by everybody")


def test_each_link_of_a_chain_is_judged(above: Path) -> None:
    """The one in the middle can be pointed elsewhere, too."""
    shared = above / "shared"
    shared.mkdir()
    (shared / "second").symlink_to("../tier")
    (above / "first").symlink_to(shared / "second")
    check_own(above / "first")
    shared.chmod(0o777)
    refused(above / "first", "by everybody")
    (above / "loop").symlink_to("loop")
    with pytest.raises(AccessDenied, match="symbolic links"):
        check_own(above / "loop" / "x")


def test_directories_that_an_operator_trusts(above: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As a pod has them, whose user cannot change them. Clients judge none that are in use."""
    above.chmod(0o777)
    with caplog.at_level(logging.WARNING):
        check_own(above / "tier", trust=True)
    assert f"{above}: the directory can be written by everybody" in caplog.text
    tiers = (f"ssd:{above / 'tier'}:64MiB",)
    spec = WorkerSpec(str(above / "home"), "http://127.0.0.1:1", "node", tiers)
    with pytest.raises(AccessDenied, match="by everybody"):
        NodeProcess(spec)
    NodeProcess(msgspec.structs.replace(spec, trust_directories=True))
    NodeProcess(msgspec.structs.replace(spec, stays=False))


def test_a_state_home_that_others_could_replace(above: Path, tmp_path_factory: Any) -> None:
    """With the socket and the names in it, whatever the cache directory is. Another user's home may
    be that of root's environment."""
    caches = tmp_path_factory.mktemp("caches")
    os.chown(above, 65534, 65534)
    tiers = (f"ssd:{caches}:64MiB",)
    with pytest.raises(AccessDenied, match="belongs to user 65534"):
        NodeProcess(WorkerSpec(str(above / "home"), "http://127.0.0.1:1", "node", tiers))
    server = ServerSpec(str(above / "home"), UfsSpec("file:///"), str(caches), 1 << 20)
    with pytest.raises(AccessDenied, match="belongs to user 65534"):
        ensure_server(server)
    with pytest.raises(AccessDenied, match="belongs to user 65534"):
        mount.plan("file:///", "/", load_settings({"home": str(above)}, None), **FLAGS)
    assert not (above / "home").exists()
