"""Names and files that change under a mount: the same on every transport."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import random
from pathlib import Path

import pytest

from cachefs.core import messages as m
from cachefs.fuse import mounting
from tests.conformance import posix
from tests.conformance.posix import error_of
from tests.conformance.transports import KERNEL, Mounted
from tests.conformance.tree import FILES
from tests.services.processes import wait_until
from tests.unit.fuse.fake_node import NAMESPACE

BIG = FILES["partial"]


# ---- names that change ----


def test_a_changed_name_is_seen_at_once_when_told(mounted: Mounted) -> None:
    """The kernel keeps names for `valid_for_s`; an invalidation cuts that short."""
    path, node = mounted.path / "d/warm", mounted.node
    before = path.stat().st_ino
    node.remove("d/warm")
    after = node.add_file("d/warm", b"new")
    assert path.stat().st_ino == before, "the kernel still trusts what it was told"
    node.event(m.Invalidate(NAMESPACE, 1, [(node.find("d"), b"warm")]))
    wait_until(lambda: path.stat().st_ino == after, "the new file shows")
    assert path.read_bytes() == b"new"


def test_everything_can_be_distrusted(mounted: Mounted) -> None:
    path = mounted.path / "d/warm"
    before = path.stat().st_ino
    mounted.node.remove("d/warm")
    mounted.node.add_file("d/warm", b"new")
    assert path.stat().st_ino == before
    mounted.node.event(m.Invalidate(NAMESPACE, 1, everything=True))
    wait_until(lambda: path.stat().st_ino != before, "the new file shows")


def test_absence_is_kept_until_told(mounted: Mounted) -> None:
    path, node = mounted.path / "d/new", mounted.node
    assert not path.exists()
    asked = len(node.asked(m.Lookup))
    for _ in range(5):
        assert not path.exists()
    assert len(node.asked(m.Lookup)) == asked, "the kernel, or the client, remembers"
    node.add_file("d/new", b"here")
    assert not path.exists()
    node.event(m.Invalidate(NAMESPACE, 1, [(node.find("d"), b"new")]))
    wait_until(path.exists, "the new file shows")
    assert path.read_bytes() == b"here"


def test_what_holds_for_no_time_is_asked_every_time(idle: Mounted) -> None:
    idle.node.valid_for_s = 0.0
    assert idle.start().failure is None
    path = idle.path / "new"
    for number in range(3):
        assert not path.exists()
        idle.node.add_file("new", b"%d" % number)
        assert path.read_bytes() == b"%d" % number
        assert os.listdir(idle.path) == ["new"]
        idle.node.remove("new")
        assert os.listdir(idle.path) == []


def test_a_name_becomes_a_directory(mounted: Mounted) -> None:
    node = mounted.node
    path = mounted.path / "d/warm"
    assert path.is_file()
    node.remove("d/warm")
    node.add_dir("d/warm")
    node.add_file("d/warm/below", b"x")
    node.event(m.Invalidate(NAMESPACE, 1, [(node.find("d"), b"warm")]))
    wait_until(path.is_dir, "the directory shows")
    assert (path / "below").read_bytes() == b"x"


@pytest.mark.parametrize("seek", [False, True])
def test_a_directory_that_changes_while_it_is_listed(
    idle: Mounted, seek: bool, rng: random.Random
) -> None:
    """What was there all along is listed once, whatever comes and goes."""
    node = idle.node
    names = [f"f{number:05d}" for number in range(3000)]
    for name in names:
        node.add_file(name, b"", published=False)
    node.valid_for_s = 0.0
    assert idle.start().failure is None
    gone: set[str] = set()
    came: set[str] = set()
    found: list[str] = []
    fd = os.open(idle.path, os.O_RDONLY)
    try:
        while entries := posix.getdents(fd, 8192):
            found += [os.fsdecode(entry.name) for entry in entries]
            for name in rng.sample(sorted(set(names) - gone), 40):
                node.remove(name)
                gone.add(name)
            for _ in range(40):
                name = f"f{rng.randrange(3000):05d}x{rng.randrange(1 << 30)}"
                node.add_file(name, b"", published=False)
                came.add(name)
            node.event(m.Invalidate(NAMESPACE, 1, everything=True))
            if seek:
                os.lseek(fd, entries[-1].offset, os.SEEK_SET)
    finally:
        os.close(fd)
    assert len(found) == len(set(found))
    stayed = set(names) - gone
    assert stayed <= set(found) <= set(names) | came | {".", ".."}


def test_a_rewound_directory_shows_what_is_new(mounted: Mounted) -> None:
    node = mounted.node
    node.valid_for_s = 0.0
    fd = os.open(mounted.path / "d", os.O_RDONLY)
    try:
        before = {entry.name for entry in posix.list_all(fd)}
        node.add_file("d/another", b"")
        os.lseek(fd, 0, os.SEEK_SET)
        assert {entry.name for entry in posix.list_all(fd)} == before | {b"another"}
    finally:
        os.close(fd)


# ---- files that are replaced ----


def test_a_stale_open_is_looked_up_again(mounted: Mounted) -> None:
    """The name changed, nobody said so, the kernel trusts it: open finds the new file."""
    path, node = mounted.path / "d/cold", mounted.node
    os.stat(path)
    node.remove("d/cold")
    node.add_file("d/cold", b"new", published=False)
    assert path.read_bytes() == b"new"


def test_an_open_of_a_name_that_went_says_so(mounted: Mounted) -> None:
    path, node = mounted.path / "d/cold", mounted.node
    os.stat(path)
    node.remove("d/cold")
    assert error_of(path.read_bytes) == errno.ENOENT


@pytest.mark.parametrize("name", ["warm", "cold", "partial"])
def test_an_open_file_outlives_its_name(mounted: Mounted, name: str) -> None:
    path, node = mounted.path / "d" / name, mounted.node
    data = FILES[name]
    with path.open("rb", buffering=0) as file:
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
            assert os.pread(file.fileno(), 10, 0) == data[:10]
            if name == "warm":
                node.unpublish(node.find("d/warm"))
            node.remove(f"d/{name}")
            node.add_file(f"d/{name}", b"the next one")
            node.event(m.Invalidate(NAMESPACE, 1, everything=True))
            wait_until(lambda: path.read_bytes() == b"the next one", "the new file shows")
            assert os.pread(file.fileno(), len(data), 0) == data
            assert posix.mapped(view, len(data)) == data
        assert os.fstat(file.fileno()).st_size == len(data)
        assert Path(f"/proc/self/fd/{file.fileno()}").stat().st_size == len(data)


def test_a_file_becomes_complete_under_its_readers(mounted: Mounted) -> None:
    """Readers of pieces go on as they are; who opens next reads the published file."""
    path, node = mounted.path / "d/partial", mounted.node
    with path.open("rb", buffering=0) as old, path.open("rb", buffering=0) as mapped:
        assert os.pread(old.fileno(), 100, 0) == BIG[:100]
        with mmap.mmap(mapped.fileno(), 0, prot=mmap.PROT_READ) as view:
            assert posix.mapped(view, 100) == BIG[:100]
            node.publish(node.find("d/partial"))
            with path.open("rb", buffering=0) as new:
                assert os.fstat(new.fileno()).st_ino == os.fstat(old.fileno()).st_ino
                assert os.pread(new.fileno(), len(BIG), 0) == BIG
                assert os.pread(old.fileno(), len(BIG), 0) == BIG
                assert posix.mapped(view, len(BIG)) == BIG
                assert path.read_bytes() == BIG


def test_evicted_and_fetched_again_under_its_readers(mounted: Mounted) -> None:
    """An unpublished file keeps its readers; the refetched one is another file to the kernel."""
    path, node = mounted.path / "d/warm", mounted.node
    data = FILES["warm"]
    ino = node.find("d/warm")
    with contextlib.ExitStack() as stack:
        for number in range(6):
            file = stack.enter_context(path.open("rb", buffering=0))
            view = stack.enter_context(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
            assert os.pread(file.fileno(), len(data), 0) == data
            name = node.content_name(ino)
            (node.pub / name).unlink()
            (node.cache / name).unlink()
            node.write_cache_file(ino, data)
            if number % 2:
                assert path.read_bytes() == data, "fetched, and not published yet"
            node.publish(ino)
            node.event(m.Invalidate(NAMESPACE, number, everything=True))
            assert posix.mapped(view, len(data)) == data
        assert path.read_bytes() == data


def test_a_partial_file_that_a_new_server_does_not_know(mounted: Mounted) -> None:
    path, node = mounted.path / "d/partial", mounted.node
    with path.open("rb", buffering=0) as file:
        assert os.pread(file.fileno(), 10, 0) == BIG[:10]
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        node.remove("d/partial")
        node.add_file("d/partial", bytes(len(BIG)), published=False)
        node.cut()
        node.wait_asked(m.Attach, 2)
        with pytest.raises(OSError) as caught:
            os.pread(file.fileno(), 10, 8 << 20)
        assert caught.value.errno == errno.ESTALE
    assert path.read_bytes() == bytes(len(BIG))


def test_the_server_goes_and_comes_back(mounted: Mounted) -> None:
    """Warm files need no server; a partial file open from before goes on in the next session."""
    node = mounted.node
    with (mounted.path / "d/partial").open("rb", buffering=0) as file:
        assert os.pread(file.fileno(), 10, 0) == BIG[:10]
        node.cut()
        node.wait_asked(m.Attach, 2)
        assert os.pread(file.fileno(), 10, 5 << 20) == BIG[5 << 20 :][:10]
    assert (mounted.path / "d/warm").read_bytes() == FILES["warm"]
    opens = [body for body in node.asked(m.Open) if body.ino == node.find("d/partial")]
    assert len(opens) == 2


# ---- what is asked, and what is told ----


def test_only_what_is_not_here_is_asked_for(mounted: Mounted) -> None:
    for _ in range(3):
        for name in ("warm", "cold"):
            assert (mounted.path / "d" / name).read_bytes() == FILES[name]
    asked = {body.ino for body in mounted.node.asked(m.Open)}
    assert asked == {mounted.node.find("d/cold")}
    assert len(mounted.node.asked(m.Attach)) == 1


def test_uses_are_reported(mounted: Mounted) -> None:
    assert (mounted.path / "d/warm").read_bytes() == FILES["warm"]
    mounted.node.wait_asked(m.Used)
    used = mounted.node.asked(m.Used)
    names = [name for report in used for name in report.names]
    assert names == [mounted.node.content_name(mounted.node.find("d/warm"))]
    if mounted.transport != KERNEL:  # which reads unseen
        assert sum(report.hit_bytes for report in used) >= len(FILES["warm"])


def test_each_server_hears_how_the_mount_is_served(mounted: Mounted) -> None:
    mounted.node.wait_asked(m.MountFacts)
    mounted.node.cut()
    heard = len(mounted.node.asked(m.MountFacts))
    mounted.node.wait_asked(m.MountFacts, heard + 1)
    kinds = {facts.transport for facts in mounted.node.asked(m.MountFacts)}
    assert kinds == {mounted.transport.partition(" ")[0]}


def test_handles_are_released(mounted: Mounted) -> None:
    for _ in range(3):
        assert (mounted.path / "d/partial").read_bytes() == BIG
    wait_until(lambda: not mounted.node.open_handles, "the server's handles are released")


def test_the_kernels_limits_are_raised(mounted: Mounted) -> None:
    """Read-ahead, and how much of it may be under way before files are asked for page by page."""
    device = mounted.mountinfo().split()[2]
    assert int(Path(f"/sys/class/bdi/{device}/read_ahead_kb").read_text()) >= 1024
    control = mounting.control_file_system()
    try:
        limits = {
            "max_background": mounting.MAX_BACKGROUND,
            "congestion_threshold": mounting.CONGESTED,
        }
        for name, limit in limits.items():
            minor = device.partition(":")[2]
            with open(os.open(f"{minor}/{name}", os.O_RDONLY, dir_fd=control)) as file:
                assert int(file.read()) == limit
    finally:
        os.close(control)


def test_the_mount_table(mounted: Mounted) -> None:
    fields = mounted.mountinfo().split(" - ")
    assert fields[1].startswith("fuse.cachefs s3://bucket/pre,fix ro,")
    assert {"ro", "nosuid", "nodev"} <= set(fields[0].split()[5].split(","))


def test_writes_are_refused_on_a_mount_that_is_not_read_only(idle: Mounted) -> None:
    idle.node.add_file("a", b"x")
    assert idle.start(read_only=False).failure is None
    path = idle.path / "a"
    attempts = [
        lambda: (idle.path / "new").write_bytes(b"x"),
        lambda: path.open("r+b"),
        lambda: os.truncate(path, 0),
        lambda: path.unlink(),
        lambda: (idle.path / "d").mkdir(),
        lambda: path.rename(idle.path / "b"),
        lambda: os.symlink("a", idle.path / "l"),
        lambda: os.link(path, idle.path / "l"),
        lambda: os.utime(path),
        lambda: os.chmod(path, 0o600),
        lambda: os.mkfifo(idle.path / "f"),
        lambda: os.setxattr(path, "user.a", b"x"),
        lambda: os.open(idle.path, os.O_TMPFILE | os.O_RDWR),
    ]
    for number, attempt in enumerate(attempts):
        with pytest.raises(OSError) as caught:
            attempt()
        allowed = {errno.EROFS, errno.ENOTSUP} if number == 12 else {errno.EROFS}
        assert caught.value.errno in allowed, f"attempt {number}"
