"""The lock table of an LMDB environment is in memory; nothing of it is left in the directory."""

from __future__ import annotations

import os
from pathlib import Path

import lmdb
import pytest

from cachefs.core.lock_table import lock_table_in_memory


def opened(directory: Path) -> lmdb.Environment:
    with lock_table_in_memory(directory):
        return lmdb.open(str(directory), map_size=1 << 30)


def tables() -> list[str]:
    """Returns the files of the lock tables that this process has mapped."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in maps if "lock" in line and "rw-s" in line]


def check(env: lmdb.Environment) -> None:
    with env.begin(write=True) as txn:
        txn.put(b"key", b"value")
    with env.begin() as first, env.begin() as second:
        assert first.get(b"key") == second.get(b"key") == b"value"


def test_the_table_is_in_memory_and_one_of_an_earlier_version_is_removed(tmp_path: Path) -> None:
    (tmp_path / "lock.mdb").write_bytes(b"of an earlier version")
    before, descriptors = len(tables()), len(os.listdir("/proc/self/fd"))
    env = opened(tmp_path)
    assert os.listdir(tmp_path) == ["data.mdb"]
    new = tables()[before:]
    assert len(new) == 1
    assert "memfd:cachefs-lock-table" in new[0]
    check(env)
    env.close()
    assert len(os.listdir("/proc/self/fd")) == descriptors
    env = opened(tmp_path)
    check(env)
    env.close()


def test_a_link_that_a_killed_process_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "lock.mdb").symlink_to("/proc/self/fd/0")
    env = opened(tmp_path)
    check(env)
    env.close()
    assert os.listdir(tmp_path) == ["data.mdb"]


def test_without_symbolic_links_the_table_is_beside_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: str) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    env = opened(tmp_path)
    check(env)
    env.close()
    assert sorted(os.listdir(tmp_path)) == ["data.mdb", "lock.mdb"]


def test_an_environment_that_cannot_be_opened_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"no LMDB file" * 1000)
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(lmdb.Error):
        opened(tmp_path)
    assert os.listdir(tmp_path) == ["data.mdb"]
    assert len(os.listdir("/proc/self/fd")) == descriptors
