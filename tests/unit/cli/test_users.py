"""Who keeps a mount busy: found in /proc, by links that are read and never followed."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cachefs.cli.commands import umount, users
from cachefs.cli.commands.users import User, describe, find_users
from cachefs.core.mountinfo import Mount, Mounts


def process(proc: Path, pid: int, *, fds: dict[str, str], cwd: str = "/", maps: str = "") -> None:
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    for number, target in fds.items():
        (folder / "fd" / number).symlink_to(target)
    (folder / "cwd").symlink_to(cwd)
    (folder / "root").symlink_to("/")
    (folder / "exe").symlink_to("/bin/true")
    (folder / "comm").write_text(f"name{pid}\n")
    (folder / "maps").write_text(maps)


def test_every_kind_of_use_is_seen(tmp_path: Path) -> None:
    mapping = "7f00-7f01 r--p 00000000 00:32 7 {}\n"
    process(tmp_path, 1, fds={"3": "/mnt/data/file"})
    process(tmp_path, 2, fds={"3": "/mnt/database/file", "4": "socket:[1]"})
    process(tmp_path, 3, fds={}, cwd="/mnt/data")
    process(tmp_path, 4, fds={}, maps=mapping.format("/mnt/data/lib.so"))
    process(tmp_path, 5, fds={}, maps=mapping.format("/mnt/database/lib.so"))
    process(tmp_path, 6, fds={"9": "/mnt/data/gone (deleted)"})
    (tmp_path / "self").mkdir()
    (tmp_path / "7").mkdir()  # one that ended while we looked
    found = find_users("/mnt/data", str(tmp_path))
    assert [user.pid for user in found] == [1, 3, 4, 6]
    assert found[0] == User(1, "name1")


def test_real_processes(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], cwd=tmp_path, stdin=subprocess.PIPE
    ) as p:
        assert p.pid in [user.pid for user in find_users(str(tmp_path))]
    assert find_users(str(tmp_path)) == []


def test_a_mapping_alone_counts(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 4096)
    fd = os.open(tmp_path / "f", os.O_RDONLY)
    with mmap.mmap(fd, 4096, prot=mmap.PROT_READ):
        os.close(fd)
        assert os.getpid() in [user.pid for user in find_users(str(tmp_path))]


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, "p1 (pid 1)"), (2, "p1 (pid 1), p2 (pid 2)"), (7, "p5 (pid 5) and 2 more")],
)
def test_describe(count: int, expected: str) -> None:
    assert describe([User(n, f"p{n}") for n in range(1, count + 1)]).endswith(expected)


def test_umount_does_not_keep_the_mount_busy_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # and back at the end
    users.leave(str(tmp_path / "elsewhere"))
    assert Path.cwd() == tmp_path
    users.leave(str(tmp_path))
    assert str(Path.cwd()) == "/"


def test_umount_does_not_name_itself_beside_others() -> None:
    mount = Mount("0:50", "/", "/mnt/data", "fuse.cachefs", "s3://bucket", ())
    own, other = User(os.getpid(), "cachefs"), User(7, "bash")
    assert umount._busy(mount, Mounts([mount]), [other, own]).cause == "in use by bash (pid 7)"
    assert "cachefs (pid " in umount._busy(mount, Mounts([mount]), [own]).cause
