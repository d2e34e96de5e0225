"""The reserve of the state home: made where there is room, given up where there is none."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cachefs.launcher import reserve
from cachefs.launcher.reserve import NAME, RESERVE_BYTES, ROOMY_BYTES, SHORT_BYTES, Reserve


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the file system says is free."""
    found = [ROOMY_BYTES]
    monkeypatch.setattr(Reserve, "_free_bytes", lambda _: found[0])
    return found


def test_it_takes_room_and_gives_it_back(
    tmp_path: Path, free: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    one = Reserve(tmp_path)
    assert one.make()
    assert (tmp_path / NAME).stat().st_blocks * 512 >= RESERVE_BYTES
    assert one.make(), "there already"
    assert one.give_up_if_short() == ""
    free[0] = SHORT_BYTES - 1
    line = one.give_up_if_short()
    assert str(tmp_path) in line
    assert "its reserve is used now" in line
    assert os.listdir(tmp_path) == []
    assert "is used up" in one.give_up_if_short()
    assert len(caplog.records) == 1, "one warning, however often a start is tried"
    free[0] = ROOMY_BYTES - 1
    assert not one.make()
    free[0] = ROOMY_BYTES
    assert one.make()


def test_a_disk_that_fills_up_meanwhile_keeps_no_part_of_it(
    tmp_path: Path, free: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, offset: int, size: int) -> None:
        os.pwrite(fd, b"some", 0)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(reserve.os, "posix_fallocate", full)
    assert not Reserve(tmp_path).make()
    assert os.listdir(tmp_path) == []


def test_a_missing_state_home_is_none_of_its_business(tmp_path: Path) -> None:
    one = Reserve(tmp_path / "none")
    assert not one.make()
    assert one.give_up_if_short() == ""
