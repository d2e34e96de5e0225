"""Names, attributes and directories of a mounted file system, the same on every transport."""

from __future__ import annotations

import concurrent.futures
import errno
import fcntl
import os
import random
import stat
import subprocess

import pytest

from tests.conformance import posix
from tests.conformance.posix import MIB, error_of
from tests.conformance.transports import Mounted
from tests.conformance.tree import ENDS_OF_TIME, FILES, ODD_NAMES, SPARSE_BYTES
from tests.unit.fuse.fake_node import MTIME_NS

# ---- names ----


def test_names_are_bytes(tree: Mounted) -> None:
    folder = bytes(tree.path / "odd")
    assert sorted(os.listdir(folder)) == sorted(ODD_NAMES)
    for name in ODD_NAMES:
        with open(folder + b"/" + name, "rb") as odd:
            assert odd.read() == name


def test_long_names(tree: Mounted) -> None:
    longest, too_long = tree.path / ("m" * 255), tree.path / ("m" * 256)
    assert error_of(lambda: os.stat(longest)) == errno.ENOENT
    assert error_of(lambda: os.stat(too_long)) == errno.ENAMETOOLONG


def test_names_that_are_not_there(tree: Mounted) -> None:
    assert error_of(lambda: os.stat(tree.path / "nothing")) == errno.ENOENT
    assert error_of(lambda: os.stat(tree.path / "nothing/below")) == errno.ENOENT
    assert error_of(lambda: os.stat(tree.path / "one/below")) == errno.ENOTDIR
    assert error_of(lambda: os.stat(tree.path / "one" / "")) == 0  # pathlib drops the slash
    assert error_of(lambda: os.stat(f"{tree.path}/one/")) == errno.ENOTDIR
    assert error_of(lambda: os.open(tree.path / "one", os.O_DIRECTORY)) == errno.ENOTDIR
    assert error_of(lambda: os.read(os.open(tree.path / "d", os.O_RDONLY), 1)) == errno.EISDIR


def test_deep_paths_and_working_directories(tree: Mounted) -> None:
    deep = "/".join(["deep"] * 8)
    assert (tree.path / deep / "leaf").read_bytes() == b"down here"
    assert (tree.path / deep / "../../deep/deep/leaf").resolve().read_bytes() == b"down here"
    shown = subprocess.run(
        ["sh", "-c", "pwd -P; cat leaf; cd ../..; pwd -P"],
        cwd=tree.path / deep,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert shown == f"{tree.path}/{deep}\ndown here{tree.path}/{'/'.join(['deep'] * 6)}\n"


def test_symbolic_links(tree: Mounted) -> None:
    assert os.readlink(tree.path / "link") == "d/f00007"
    assert os.stat(tree.path / "link").st_ino == os.stat(tree.path / "d/f00007").st_ino
    info = os.lstat(tree.path / "link")
    assert (stat.S_ISLNK(info.st_mode), info.st_size) == (True, len("d/f00007"))
    assert error_of(lambda: os.stat(tree.path / "dangling")) == errno.ENOENT
    assert os.readlink(tree.path / "dangling") == "nowhere/at all"
    assert error_of(lambda: os.stat(tree.path / "loop")) == errno.ELOOP
    no_follow = os.O_RDONLY | os.O_NOFOLLOW
    assert error_of(lambda: os.open(tree.path / "link", no_follow)) == errno.ELOOP
    assert error_of(lambda: os.readlink(tree.path / "one")) == errno.EINVAL


# ---- attributes ----


def test_attributes_of_files(tree: Mounted) -> None:
    for name, data in FILES.items():
        info = (tree.path / name).stat()
        assert info.st_mode == stat.S_IFREG | 0o755
        assert (info.st_size, info.st_nlink) == (len(data), 1)
        assert info.st_blocks == -(-len(data) // 512)
        assert info.st_mtime_ns == info.st_ctime_ns == info.st_atime_ns == MTIME_NS
        assert (info.st_uid, info.st_gid) == (os.geteuid(), os.getegid())
        assert info.st_ino == tree.node.find(name)
        with (tree.path / name).open("rb") as opened:
            assert os.fstat(opened.fileno()) == info


def test_attributes_of_directories(tree: Mounted) -> None:
    info = (tree.path / "d").stat()
    assert info.st_mode == stat.S_IFDIR | 0o755
    assert info.st_ino == tree.node.find("d")
    assert info.st_dev == tree.path.stat().st_dev != tree.root.stat().st_dev
    assert tree.path.stat().st_ino == 1


def test_times_before_1970_and_sizes_beyond_32_bits(tree: Mounted) -> None:
    assert (tree.path / "old").stat().st_mtime_ns == -86_400_000_000_000 - 1
    for name, seconds in ENDS_OF_TIME.items():
        assert (tree.path / name).stat().st_mtime_ns == seconds * 10**9
    info = (tree.path / "sparse").stat()
    assert (info.st_size, info.st_blocks) == (SPARSE_BYTES, -(-SPARSE_BYTES // 512))


def test_reading_changes_no_attribute(tree: Mounted) -> None:
    before = (tree.path / "page").stat()
    assert (tree.path / "page").read_bytes() == FILES["page"]
    assert (tree.path / "page").stat() == before


def test_access(tree: Mounted) -> None:
    path = tree.path / "one"
    assert os.access(path, os.R_OK | os.F_OK)
    assert os.access(path, os.X_OK)
    assert not os.access(path, os.W_OK)
    assert not os.access(tree.path / "nothing", os.F_OK)
    assert os.access(tree.path / "d", os.R_OK | os.X_OK)


def test_programs_run(tree: Mounted) -> None:
    done = subprocess.run([tree.path / "script"], capture_output=True, text=True, check=True)
    assert done.stdout == "it runs\n"


def test_statfs(tree: Mounted) -> None:
    info = os.statvfs(tree.path)
    assert info.f_bavail * info.f_frsize >= 1 << 50
    assert info.f_favail > 0
    assert info.f_namemax == 255
    assert info.f_flag & os.ST_RDONLY
    assert info.f_flag & os.ST_NOSUID
    with (tree.path / "warm").open("rb") as opened:
        assert os.fstatvfs(opened.fileno()) == os.statvfs(tree.path)


def test_no_extended_attributes_and_no_ioctls(tree: Mounted) -> None:
    for name in ("one", "d", "warm"):
        path = tree.path / name
        assert error_of(lambda path=path: os.getxattr(path, "user.a")) == errno.ENOTSUP
        assert error_of(lambda path=path: os.listxattr(path)) in (0, errno.ENOTSUP)
        assert error_of(lambda path=path: os.setxattr(path, "user.a", b"x")) == errno.EROFS
        assert error_of(lambda path=path: os.removexattr(path, "user.a")) == errno.EROFS
        fd = os.open(path, os.O_RDONLY)
        try:
            for request in (0x5401, 0x80086601, 0x12345678):  # TCGETS, FS_IOC_GETFLAGS, no such
                answer = error_of(
                    lambda fd=fd, request=request: fcntl.ioctl(fd, request, b" " * 64)
                )
                assert answer == errno.ENOTTY, hex(request)
        finally:
            os.close(fd)
    assert not os.isatty(os.open(tree.path / "one", os.O_RDONLY))


# ---- directories ----


@pytest.mark.parametrize("size", [300, 1000, 4096, MIB])
def test_a_directory_lists_every_name_once(tree: Mounted, size: int) -> None:
    fd = os.open(tree.path / "d", os.O_RDONLY)
    try:
        entries = posix.list_all(fd, size)
        assert posix.getdents(fd, size) == []
    finally:
        os.close(fd)
    assert [entry.name for entry in entries[:2]] == [b".", b".."]
    assert [entry.name for entry in entries[2:]] == [b"f%05d" % n for n in range(2500)]
    assert entries[0].ino == tree.node.find("d")
    assert entries[1].ino == 1
    assert [entry.ino for entry in entries[2:]] == [
        tree.node.find(f"d/f{n:05d}") for n in (0, 1)
    ] + [entry.ino for entry in entries[4:]]
    assert len({entry.offset for entry in entries}) == len(entries)


def test_seeking_in_a_directory(tree: Mounted, rng: random.Random) -> None:
    fd = os.open(tree.path / "d", os.O_RDONLY)
    try:
        entries = posix.list_all(fd)
        for _ in range(20):
            place = rng.randrange(len(entries))
            os.lseek(fd, entries[place].offset, os.SEEK_SET)
            wanted = entries[place + 1 : place + 4]
            assert posix.list_some(fd, len(wanted))[:3] == wanted
        os.lseek(fd, 0, os.SEEK_SET)
        assert posix.list_all(fd) == entries
    finally:
        os.close(fd)


def test_a_place_in_a_directory_holds_for_another_handle(tree: Mounted, rng: random.Random) -> None:
    first, second = (os.open(tree.path / "d", os.O_RDONLY) for _ in range(2))
    try:
        entries = posix.list_all(first)
        place = rng.randrange(1500, 2400)
        os.lseek(second, entries[place].offset, os.SEEK_SET)
        assert posix.list_all(second) == entries[place + 1 :]
    finally:
        os.close(first)
        os.close(second)


def _kind(entry: os.DirEntry[str]) -> tuple[bool, bool]:
    return entry.is_file(follow_symlinks=False), entry.is_symlink()


def test_kinds_of_entries(tree: Mounted) -> None:
    with os.scandir(tree.path) as entries:
        kinds = {entry.name: _kind(entry) for entry in entries}
    assert kinds["one"] == (True, False)
    assert kinds["d"] == (False, False)
    assert kinds["dangling"] == (False, True)
    with os.scandir(tree.path / "odd") as entries:
        for entry in entries:
            assert entry.inode() == entry.stat().st_ino
            assert entry.stat().st_size == len(os.fsencode(entry.name))


def test_two_listings_at_a_time(tree: Mounted) -> None:
    with os.scandir(tree.path / "d") as one, os.scandir(tree.path / "d") as two:
        pairs = zip(one, two, strict=True)
        assert all(a.name == b.name for a, b in pairs)


def test_walks_in_parallel(tree: Mounted) -> None:
    def walk(_: int) -> int:
        command = ["find", tree.path, "-printf", "%P %s %i\n"]
        done = subprocess.run(command, capture_output=True, check=True, timeout=60)
        return hash(tuple(sorted(done.stdout.splitlines())))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(walk, range(4)))) == 1
