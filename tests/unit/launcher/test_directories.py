"""Directories of caches that others could change or replace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cachefs.core.errors import AccessDenied
from cachefs.launcher.directories import check_own


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


def test_a_directory_of_ones_own_below_a_sticky_one(above: Path) -> None:
    check_own(above / "tier")
    check_own(above / "to" / "be" / "made")
    above.chmod(0o1777)
    check_own(above / "tier")
    check_own(above / "new")


@pytest.mark.parametrize("mode", [0o757, 0o777, 0o1777])
def test_a_directory_that_everybody_may_write(above: Path, mode: int) -> None:
    (above / "tier").chmod(mode)
    refused(above / "tier", "by everybody")


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
