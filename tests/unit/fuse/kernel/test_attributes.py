"""Inodes as the kernel reads them, compared with the layouts of `linux/fuse.h` by hand."""

from __future__ import annotations

import errno
import stat

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from cachefs.core import messages as m
from cachefs.core.model import Inode, Kind, nodeid
from cachefs.fuse.attributes import Defaults
from cachefs.fuse.directories import Entry
from cachefs.fuse.kernel.attributes import Attributes, time_out
from tests.unit.fuse.kernel.requests import i32, u32, u64

FILE = Inode(5, Kind.FILE, size=1025, mtime_ns=1_700_000_000_000_000_007, mode=0o640, uid=3, gid=4)
BARE = Inode(6, Kind.DIRECTORY)


def attributes(incarnation: int = 0) -> Attributes:
    defaults = Defaults(uid=1000, gid=1001, file_mode=0o644, dir_mode=0o755)
    return Attributes(defaults, lambda ino: nodeid(ino, incarnation))


def attr_of_file() -> bytes:
    """struct fuse_attr."""
    golden = u64(5) + u64(1025) + u64(3)  # ino size blocks (of 512 bytes)
    golden += u64(1_700_000_000) * 3 + u32(7) * 3  # atime mtime ctime
    golden += u32(stat.S_IFREG | 0o640) + u32(1) + u32(3) + u32(4)  # mode nlink uid gid
    return golden + u32(0) + u32(1 << 20) + u32(0)  # rdev blksize flags


def attr_of_directory() -> bytes:
    golden = u64(6) + u64(0) + u64(0) + u64(0) * 3 + u32(0) * 3
    golden += u32(stat.S_IFDIR | 0o755) + u32(1) + u32(1000) + u32(1001)
    return golden + u32(0) + u32(1 << 20) + u32(0)


def test_an_entry() -> None:
    golden = u32(16 + 40 + 88) + i32(0) + u64(9)
    golden += u64(nodeid(5, 2)) + u64(0)  # nodeid, generation
    golden += u64(60) + u64(60) + u32(500_000_000) * 2 + attr_of_file()
    assert attributes(2).entry_reply(9, m.Found(FILE, 60.5)) == golden


def test_the_nonce_is_the_generation_where_the_kernel_was_told_generations() -> None:
    inode = msgspec.structs.replace(FILE, nonce=0xFEDC_BA98_7654_3210)
    entry = Entry(b"abc", inode, 1.0, 3)
    told = attributes()
    assert told.entry_reply(9, m.Found(inode, 1.0))[24:32] == u64(0xFEDC_BA98_7654_3210)
    assert told.direntplus(entry)[8:16] == u64(0xFEDC_BA98_7654_3210)
    untold = Attributes(Defaults(uid=1, gid=1), lambda ino: ino, generations=False)
    assert untold.entry_reply(9, m.Found(inode, 1.0))[24:32] == u64(0)
    assert untold.direntplus(entry)[8:16] == u64(0)


def test_a_name_that_is_known_not_to_be_there_has_no_nodeid() -> None:
    reply = attributes().entry_reply(9, m.Found(None, 60.0))
    assert reply == u32(144) + i32(0) + u64(9) + u64(0) * 2 + u64(60) * 2 + bytes(8 + 88)


def test_a_name_of_which_nothing_may_be_kept() -> None:
    reply = attributes().entry_reply(9, m.Found(None, 0.0))
    assert reply == u32(16) + i32(-errno.ENOENT) + u64(9)


def test_attributes_show_the_ino_whatever_the_nodeid() -> None:
    golden = u32(16 + 16 + 88) + i32(0) + u64(9) + u64(1) + u32(0) + u32(0)
    assert attributes(2).attr_reply(9, m.Found(FILE, 1.0)) == golden + attr_of_file()
    golden = u32(16 + 16 + 88) + i32(0) + u64(9) + u64(0) + u32(0) + u32(0)
    assert attributes().attr_reply(9, m.Found(BARE, 0.0)) == golden + attr_of_directory()


def test_entries_of_a_listing() -> None:
    entry = Entry(b"abc", FILE, 1.0, 1 << 32 | 8)
    dirent = u64(5) + u64(1 << 32 | 8) + u32(3) + u32(8) + b"abc\0\0\0\0\0"  # DT_REG
    assert attributes(2).dirent(entry) == dirent
    golden = u64(nodeid(5, 2)) + u64(0) + u64(1) * 2 + u32(0) * 2 + attr_of_file() + dirent
    assert attributes(2).direntplus(entry) == golden


def test_directories_and_links_have_one_nodeid() -> None:
    for kind, type_ in ((Kind.DIRECTORY, 4), (Kind.SYMLINK, 10)):
        entry = Entry(b"x", Inode(6, kind), 1.0, 3)
        record = attributes(2).direntplus(entry)
        assert record[:8] == u64(6)
        assert record[128:] == u64(6) + u64(3) + u32(1) + u32(type_) + b"x" + bytes(7)


def test_dots_come_without_a_nodeid() -> None:
    """The kernel must not look at the rest: a lookup of `..` is its own."""
    for name in (b".", b".."):
        record = attributes().direntplus(Entry(name, BARE, 0.0, 2))
        assert record[:128] == bytes(128)
        assert record[128 + 24 :].rstrip(b"\0") == name


def test_times_before_1970() -> None:
    reply = attributes().attr_reply(9, m.Found(Inode(5, Kind.FILE, mtime_ns=-1), 1.0))
    assert reply[32 + 32 : 32 + 40] == b"\xff" * 8, "one second before"
    assert reply[32 + 52 : 32 + 56] == u32(999_999_999)


@given(st.floats(0, 4e8))
def test_time_outs_are_whole(valid_for_s: float) -> None:
    seconds, ns = time_out(valid_for_s)
    assert 0 <= ns < 10**9
    assert abs(seconds + ns / 1e9 - valid_for_s) < 1e-6
