"""When a file of a directory counts as changed: whoever writes it sets its size and mtime at will,
and its inode number and ctime not."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cachefs.core.errors import Stale
from cachefs.core.model import Fingerprint
from cachefs.core.mountinfo import Mounts, device_name, parse_mountinfo
from connectors import inode_numbers
from connectors.bounds import MAX_TIME_S
from connectors.file import connector as file
from connectors.file.connector import COARSE_NS, NS, TICK_NS, FileConnector

OLD = b"old" * (1 << 20)  # 3 MiB: more than a chunk
NEW = b"new" * (1 << 20)
MTIME_NS = 1_700_000_000_123_456_789


def write(where: Path, data: bytes) -> None:
    """Within the file that is there."""
    with where.open("r+b" if where.exists() else "wb") as target:
        target.write(data)
    os.utime(where, ns=(MTIME_NS, MTIME_NS))


def copy_over(where: Path) -> None:
    """As `cp -p` does."""
    write(where.with_name("aside"), NEW)
    shutil.copyfile(where.with_name("aside"), where)
    shutil.copystat(where.with_name("aside"), where)


def rename_over(where: Path) -> None:
    """As `rsync -t` does."""
    write(where.with_name("aside"), NEW)
    os.rename(where.with_name("aside"), where)


def unlink_first(where: Path) -> None:
    """As `tar x` does. The file system may give the inode number again."""
    os.unlink(where)
    write(where, NEW)


CHANGES = [copy_over, rename_over, unlink_first, lambda where: write(where, NEW)]
NAMES = ["copied over", "renamed over", "unlinked first", "rewritten"]
Change = Callable[[Path], None]


def version_of(source: FileConnector) -> Fingerprint:
    return source.stat(b"f").fingerprint


@pytest.fixture
def where(tmp_path: Path) -> Path:
    found = tmp_path / "root" / "f"
    found.parent.mkdir()
    write(found, OLD)
    return found


@pytest.fixture
def source(where: Path) -> FileConnector:
    return FileConnector(str(where.parent))


@pytest.mark.parametrize("change", CHANGES, ids=NAMES)
def test_a_file_of_the_same_size_and_mtime_is_another_version(
    source: FileConnector, where: Path, change: Change
) -> None:
    before = version_of(source)
    change(where)
    found = version_of(source)
    assert (found.size, found.mtime_ns) == (before.size, before.mtime_ns)
    assert found != before
    [page] = source.list_dir(b"")
    assert {entry.name: entry for entry in page.entries}[b"f"].fingerprint == found
    with pytest.raises(Stale):
        source.read(b"f", 0, len(OLD), before)
    with pytest.raises(Stale):
        source.read_all(b"f", before)
    assert bytes(source.read_all(b"f", found)) == NEW


@pytest.mark.parametrize("change", CHANGES, ids=NAMES)
def test_no_mix_is_read(source: FileConnector, where: Path, change: Change) -> None:
    """What follows a change is an error, or the rest of the file that was opened."""
    chunks = iter(source.read(b"f", 0, len(OLD), version_of(source)))
    got = bytearray(next(chunks))
    change(where)
    try:
        for chunk in chunks:
            got += chunk
    except Stale:
        assert OLD.startswith(bytes(got))
    else:
        assert got == OLD


def test_a_change_during_a_read_is_noticed_before_its_bytes_are_given(
    source: FileConnector, where: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = os.preadv

    def torn(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        count = read(descriptor, buffers, offset)
        write(where, NEW)
        return count

    body = source.read(b"f", 0, len(OLD), version_of(source))
    monkeypatch.setattr(os, "preadv", torn)
    with pytest.raises(Stale):
        next(iter(body))


@pytest.mark.parametrize("change", ["chmod", "link"])
def test_a_ctime_alone_is_another_version(source: FileConnector, where: Path, change: str) -> None:
    before = version_of(source)
    if change == "chmod":
        where.chmod(0o600)
    else:
        os.link(where, where.with_name("link"))
    assert version_of(source) != before


def test_a_version_of_an_earlier_release_has_no_etag(source: FileConnector, where: Path) -> None:
    known = msgspec.structs.replace(version_of(source), etag="")
    assert bytes(source.read_all(b"f", known)) == OLD
    with pytest.raises(Stale):
        source.read_all(b"f", msgspec.structs.replace(known, mtime_ns=MTIME_NS + 1))


@pytest.mark.parametrize("age_ns", [0, 1, TICK_NS // 2, TICK_NS - 1, -TICK_NS // 2])
def test_a_file_that_changed_just_now_is_read_when_its_ctime_is_over(
    where: Path, age_ns: int
) -> None:
    """A change within the same tick of the kernel's clock has the same ctime: it comes before the
    first byte is read, so that one version never names two contents."""
    ctime_ns = where.stat().st_ctime_ns
    waited_s: list[float] = []
    version = version_of(FileConnector(str(where.parent)))

    def pause(wait_s: float) -> None:
        waited_s.append(wait_s)

    source = FileConnector(str(where.parent), clock_ns=lambda: ctime_ns + age_ns, sleep=pause)
    assert bytes(source.read_all(b"f", version)) == OLD
    assert waited_s == [pytest.approx((TICK_NS - age_ns) / NS)]


def test_a_change_while_a_read_waits_for_its_tick_is_noticed(where: Path) -> None:
    ctime_ns = where.stat().st_ctime_ns
    source = FileConnector(
        str(where.parent), clock_ns=lambda: ctime_ns, sleep=lambda _: write(where, NEW)
    )
    with pytest.raises(Stale):
        source.read_all(b"f", version_of(source))


def test_a_settled_file_is_read_at_once(where: Path) -> None:
    ctime_ns = where.stat().st_ctime_ns

    def never(wait_s: float) -> None:
        raise AssertionError(f"waits {wait_s} s")

    for age_ns in (TICK_NS, -TICK_NS, 3600 * NS, -3600 * NS):
        source = FileConnector(
            str(where.parent), clock_ns=lambda age_ns=age_ns: ctime_ns + age_ns, sleep=never
        )
        assert bytes(source.read_all(b"f", version_of(source))) == OLD


def test_how_long_a_ctime_may_be_given_again() -> None:
    """A file system that stores whole seconds, or even ones, gives one for that long."""
    whole, fine = 1_700_000_000 * NS, 1_700_000_000 * NS + 1
    assert file.ctime_wait_ns(whole, whole) == COARSE_NS
    assert file.ctime_wait_ns(whole, whole + NS) == COARSE_NS - NS
    assert file.ctime_wait_ns(whole, whole + COARSE_NS) == 0
    assert file.ctime_wait_ns(fine, fine) == TICK_NS
    assert file.ctime_wait_ns(fine, fine + TICK_NS) == 0


def test_the_wall_clock_is_that_of_file_systems(where: Path) -> None:
    """Else nothing would ever count as changed just now."""
    write(where, NEW)
    assert abs(time.time_ns() - where.stat().st_ctime_ns) < 60 * NS


SHM = Path("/dev/shm")  # a tmpfs: it keeps times of 64 bits of seconds


@pytest.mark.parametrize("time_s", [-(1 << 40), -MAX_TIME_S - 1, MAX_TIME_S + 1, 1 << 40])
def test_times_out_of_bounds_are_clamped(tmp_path: Path, time_s: int) -> None:
    root = SHM / f"cachefs-{os.getpid()}-{tmp_path.name}"
    root.mkdir()
    try:
        write(root / "f", b"odd")
        os.utime(root / "f", ns=(0, time_s * NS))
        assert (root / "f").stat().st_mtime_ns == time_s * NS
        source = FileConnector(str(root))
        version = version_of(source)
        assert version.mtime_ns == (MAX_TIME_S if time_s > 0 else -MAX_TIME_S) * NS
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(version), type=Fingerprint) == version
        assert bytes(source.read_all(b"f", version)) == b"odd"
    finally:
        shutil.rmtree(root)


def test_a_close_does_not_wait_for_a_read_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that reads closes the descriptor when the disk answers."""
    write(tmp_path / "f", OLD)
    source = FileConnector(os.fspath(tmp_path))
    body = source.read(b"f", 0, len(OLD), version_of(source))
    hangs, answers, preadv = threading.Event(), threading.Event(), os.preadv
    descriptors: list[int] = []

    def hang(fd: int, *args: Any) -> int:
        descriptors.append(fd)
        hangs.set()
        assert answers.wait(60)
        return preadv(fd, *args)

    monkeypatch.setattr(os, "preadv", hang)
    reading = threading.Thread(target=lambda: [*body], daemon=True)
    reading.start()
    assert hangs.wait(60)
    closing = threading.Thread(target=body.close, daemon=True)
    closing.start()
    closing.join(10)
    try:
        assert not closing.is_alive()
        os.fstat(descriptors[0])  # nobody may close it before the read ends
    finally:
        answers.set()
    reading.join(60)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptors[0])
    assert [*body] == []


def test_inode_numbers_of_file_systems_in_user_space_are_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They number a file anew when the kernel has forgotten it; the ctime tells of a change."""
    write(tmp_path / "f", OLD)
    source, device = FileConnector(os.fspath(tmp_path)), os.stat(tmp_path).st_dev
    assert not version_of(source).etag.startswith("0-")
    where = device_name(device).encode()
    table = b"1 0 0:1 / /a rw shared:1 - ext4 x rw\n2 0 %b / /b rw - fuse.sshfs x rw" % where
    monkeypatch.setattr(inode_numbers, "read_mounts", lambda: Mounts(parse_mountinfo(table)))
    monkeypatch.setattr(inode_numbers, "_keeps", {})
    found = os.stat(tmp_path / "f")
    assert version_of(source).etag == f"0-{found.st_ctime_ns:x}"
    assert source.read(b"f", 0, 3, version_of(source))
