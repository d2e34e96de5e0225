"""The bytes of a mounted file system, and its descriptors, the same on every transport."""

from __future__ import annotations

import concurrent.futures
import errno
import fcntl
import hashlib
import mmap
import os
import random
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conformance import posix
from tests.conformance.posix import GIB, KIB, MIB, error_of
from tests.conformance.transports import KERNEL, Mounted
from tests.conformance.tree import FILES, SPARSE_BYTES, SPARSE_PARTS

EDGES = (0, 1, 4095, 4096, 4097, MIB - 1, MIB, MIB + 1)
SIZES = (0, 1, 4096, 128 * KIB + 1, 2 * MIB)


@pytest.fixture(params=sorted(FILES))
def file(tree: Mounted, request: pytest.FixtureRequest) -> Iterator[tuple[int, bytes]]:
    """An open descriptor, and what must be read from it."""
    fd = os.open(tree.path / request.param, os.O_RDONLY)
    try:
        yield fd, FILES[request.param]
    finally:
        os.close(fd)


# ---- bytes ----


def test_reads_at_edges(file: tuple[int, bytes]) -> None:
    fd, data = file
    end = len(data)
    for offset in (*EDGES, max(0, end - 4097), max(0, end - 1), end, end + 1, end + 5 * MIB):
        for size in SIZES:
            assert os.pread(fd, size, offset) == data[offset : offset + size], (offset, size)
    assert os.pread(fd, 10, (1 << 63) - 4096) == b""


def test_vectors(file: tuple[int, bytes]) -> None:
    fd, data = file
    parts = [bytearray(size) for size in (1, 4096, 77, 100_000)]
    count = os.preadv(fd, parts, 3)
    assert b"".join(parts)[:count] == data[3 : 3 + count]
    assert count == min(sum(map(len, parts)), max(0, len(data) - 3))


def test_sequential_reads_of_odd_sizes(file: tuple[int, bytes], rng: random.Random) -> None:
    fd, data = file
    os.lseek(fd, 0, os.SEEK_SET)
    got = bytearray()
    while some := os.read(fd, rng.choice((1, 511, 4096, 65_537, 300_000))):
        got += some
    assert got == data


def test_reads_backwards(file: tuple[int, bytes]) -> None:
    fd, data = file
    for offset in range(len(data) - 1, -1, -200_003):
        assert os.pread(fd, 70_000, offset) == data[offset : offset + 70_000]


def test_direct_reads(tree: Mounted) -> None:
    """With O_DIRECT the bytes are the same."""
    for name in ("warm", "cold", "partial"):
        data = FILES[name]
        fd = os.open(tree.path / name, os.O_RDONLY | os.O_DIRECT)
        try:
            with mmap.mmap(-1, 64 * KIB) as buffer:  # aligned
                for offset in (0, 4096, 512 * KIB, len(data) // 4096 * 4096):
                    count = os.preadv(fd, [buffer], offset)
                    assert buffer[:count] == data[offset : offset + 64 * KIB]
        finally:
            os.close(fd)


def test_far_offsets_of_a_sparse_file(tree: Mounted) -> None:
    with (tree.path / "sparse").open("rb", buffering=0) as sparse:
        fd = sparse.fileno()
        for offset, part in SPARSE_PARTS.items():
            before = max(0, offset - 5)
            want = bytes(offset - before) + part
            assert os.pread(fd, len(want), before) == want
        assert os.pread(fd, 100, 2 * GIB - 50) == bytes(100)
        assert os.pread(fd, 100, SPARSE_BYTES - 4) == b"last"
        assert os.lseek(fd, 0, os.SEEK_END) == SPARSE_BYTES


def test_seeking_to_data_and_holes(file: tuple[int, bytes]) -> None:
    """A hole of the cache file is no hole of the file: all is data up to its end."""
    fd, data = file
    if data:
        assert os.lseek(fd, 0, os.SEEK_DATA) == 0
        assert os.lseek(fd, len(data) - 1, os.SEEK_DATA) == len(data) - 1
        assert os.lseek(fd, 0, os.SEEK_HOLE) == len(data)
    for whence in (os.SEEK_DATA, os.SEEK_HOLE):
        assert error_of(lambda w=whence: os.lseek(fd, len(data), w)) == errno.ENXIO
    assert error_of(lambda: os.lseek(fd, -1, os.SEEK_SET)) == errno.EINVAL


def test_advice_and_read_ahead(file: tuple[int, bytes]) -> None:
    fd, data = file
    for advice in (os.POSIX_FADV_WILLNEED, os.POSIX_FADV_RANDOM, os.POSIX_FADV_DONTNEED):
        os.posix_fadvise(fd, 0, 0, advice)
        assert os.pread(fd, MIB, 0) == data[:MIB]


def test_copies_by_the_kernel(file: tuple[int, bytes], tmp_path: Path) -> None:
    """sendfile copies; copy_file_range is refused between file systems, and programs then read."""
    fd, data = file
    with (tmp_path / "copy").open("w+b", buffering=0) as out:
        at = 0
        while count := os.sendfile(out.fileno(), fd, at, MIB):
            at += count
        if data:
            copy = lambda: os.copy_file_range(fd, out.fileno(), MIB, 0, 0)  # noqa: E731
            assert error_of(copy) == errno.EXDEV
    assert (tmp_path / "copy").read_bytes() == data


def test_copies_by_programs(tree: Mounted, tmp_path: Path) -> None:
    paths = [tree.path / name for name in FILES]
    subprocess.run(["cp", "--sparse=always", *paths, tmp_path], check=True)
    for name, data in FILES.items():
        assert (tmp_path / name).read_bytes() == data


def test_splice(file: tuple[int, bytes]) -> None:
    fd, data = file
    reading, writing = os.pipe()
    got = bytearray()
    try:
        while count := os.splice(fd, writing, 64 * KIB, offset_src=len(got)):
            while count:
                some = os.read(reading, count)
                got += some
                count -= len(some)
    finally:
        os.close(reading)
        os.close(writing)
    assert got == data


# ---- maps ----


MAPPER = """
import hashlib, mmap, os, sys
what, flags, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
fd = int(what) if how != "close" else os.open(what, os.O_RDONLY)
prot = mmap.PROT_READ | (mmap.PROT_WRITE if how == "write" else 0)
view = mmap.mmap(fd, 0, flags=flags, prot=prot)
if how == "close":
    os.close(fd)
if how == "write":
    view[0] ^= 0xFF
print(view[-1], hashlib.md5(view[1:]).hexdigest())
"""


def mapped(what: int | Path, flags: int, how: str = "read") -> str:
    """What a program sees of a map of `what`, a descriptor or a file to open and close: the last
    byte, and a checksum of all after the first. It is not this process, whose threads answer for
    the file system: they could not while a page fault holds the interpreter."""
    command = [sys.executable, "-c", MAPPER, str(what), str(flags), how]
    fds = [what] if isinstance(what, int) else []
    done = subprocess.run(
        command, pass_fds=fds, check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout.strip()


def seen(data: bytes) -> str:
    return f"{data[-1]} {hashlib.md5(data[1:], usedforsecurity=False).hexdigest()}"


@pytest.mark.parametrize("flags", [mmap.MAP_SHARED, mmap.MAP_PRIVATE])
def test_maps(file: tuple[int, bytes], flags: int) -> None:
    fd, data = file
    if not data:
        with pytest.raises(ValueError, match="empty"):
            mmap.mmap(fd, 0, flags=flags, prot=mmap.PROT_READ)
        return
    assert mapped(fd, flags) == seen(data)


def test_private_maps_can_be_written(file: tuple[int, bytes]) -> None:
    fd, data = file
    if not data:
        return
    written = bytes([data[0] ^ 0xFF]) + data[1:]
    assert mapped(fd, mmap.MAP_PRIVATE, "write") == seen(written)
    assert os.pread(fd, 1, 0) == data[:1]


def test_shared_maps_cannot_be_written(tree: Mounted) -> None:
    with (tree.path / "warm").open("rb") as opened, pytest.raises(PermissionError):
        mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def test_a_map_outlives_its_descriptor(tree: Mounted) -> None:
    for name in ("warm", "cold", "partial"):
        assert mapped(tree.path / name, mmap.MAP_SHARED, "close") == seen(FILES[name])


def test_beyond_the_end_of_a_map_is_a_bus_error(tree: Mounted) -> None:
    """The rest of the last page is zeros; the page after it is SIGBUS."""
    program = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    size, whole = len(view), -(-len(view) // 4096) * 4096
import ctypes
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
with open(sys.argv[1], "rb") as file:
    address = libc.mmap(None, whole + 8192, 1, 1, file.fileno(), 0)
print(ctypes.string_at(address + size, whole - size) == bytes(whole - size), flush=True)
ctypes.string_at(address + whole, 1)
"""
    for name in ("warm", "partial"):
        command = [sys.executable, "-c", program, str(tree.path / name)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.stdout, done.returncode) == ("True\n", -7)


# ---- descriptors ----


def test_changes_are_refused(tree: Mounted) -> None:
    path = tree.path / "one"
    attempts: list[Callable[[], object]] = [
        lambda: (tree.path / "new").write_bytes(b"x"),
        lambda: path.open("r+b"),
        lambda: os.open(path, os.O_RDONLY | os.O_TRUNC),
        lambda: os.truncate(path, 0),
        lambda: path.unlink(),
        lambda: (tree.path / "new").mkdir(),
        lambda: (tree.path / "odd").rmdir(),
        lambda: path.rename(tree.path / "two"),
        lambda: os.symlink("a", tree.path / "new"),
        lambda: os.link(path, tree.path / "new"),
        lambda: os.utime(path),
        lambda: os.chmod(path, 0o600),
        lambda: os.chown(path, 1, 1),
        lambda: os.mkfifo(tree.path / "new"),
    ]
    for number, attempt in enumerate(attempts):
        assert error_of(attempt) == errno.EROFS, f"attempt {number}"
    fd = os.open(path, os.O_RDONLY)
    try:
        assert error_of(lambda: os.write(fd, b"x")) == errno.EBADF
        assert error_of(lambda: os.ftruncate(fd, 0)) in (errno.EINVAL, errno.EBADF)
        assert error_of(lambda: os.fchmod(fd, 0o600)) == errno.EROFS
    finally:
        os.close(fd)


def test_syncing_what_was_not_written(file: tuple[int, bytes], tree: Mounted) -> None:
    fd, _ = file
    os.fsync(fd)
    os.fdatasync(fd)
    posix.syncfs(fd)
    folder = os.open(tree.path / "d", os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def test_duplicates_share_their_place(tree: Mounted) -> None:
    for name in ("warm", "cold", "partial"):
        data = FILES[name]
        fd = os.open(tree.path / name, os.O_RDONLY)
        other = os.dup(fd)
        assert os.read(fd, 10) + os.read(other, 10) == data[:20]
        os.close(fd)
        assert os.read(other, 10) == data[20:30]
        again = os.open(f"/proc/self/fd/{other}", os.O_RDONLY)
        os.close(other)
        assert os.pread(again, 100, 5000) == data[5000:5100]
        os.close(again)


def test_children_share_open_files(tree: Mounted) -> None:
    program = "import os, sys; sys.stdout.buffer.write(os.read(int(sys.argv[1]), 10))"
    for name in ("warm", "cold", "partial"):
        data = FILES[name]
        fd = os.open(tree.path / name, os.O_RDONLY)
        try:
            for number in range(3):
                child = subprocess.run(
                    [sys.executable, "-c", program, str(fd)], pass_fds=[fd], capture_output=True
                )
                assert child.stdout == data[number * 10 :][:10]
            assert os.read(fd, 10) == data[30:40]
        finally:
            os.close(fd)


def test_descriptors_of_paths_only(tree: Mounted) -> None:
    fd = os.open(tree.path / "warm", os.O_PATH)
    try:
        assert os.fstat(fd).st_size == len(FILES["warm"])
        assert error_of(lambda: os.read(fd, 1)) == errno.EBADF
        assert Path(f"/proc/self/fd/{fd}").read_bytes() == FILES["warm"]
        assert os.readlink(f"/proc/self/fd/{fd}") == str(tree.path / "warm")
    finally:
        os.close(fd)
    folder = os.open(tree.path / "odd", os.O_PATH)
    try:
        assert os.stat("case", dir_fd=folder).st_size == 4
    finally:
        os.close(folder)


def test_files_are_always_ready(file: tuple[int, bytes]) -> None:
    fd, _ = file
    ready = select.poll()  # select() takes no descriptor above 1023, as a whole run may have
    ready.register(fd, select.POLLIN)
    assert ready.poll(10_000) == [(fd, select.POLLIN)]


def test_locks_between_processes(tree: Mounted) -> None:
    program = (
        "import fcntl, sys\n"
        "try: fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except BlockingIOError: sys.exit(7)"
    )
    command = [sys.executable, "-c", program, str(tree.path / "page")]
    with (tree.path / "page").open("rb") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        assert subprocess.run(command).returncode == 7
        fcntl.flock(opened, fcntl.LOCK_UN)
        assert subprocess.run(command).returncode == 0


# ---- many at a time ----


def test_readers_in_parallel(tree: Mounted, rng: random.Random) -> None:
    """Threads on shared descriptors, and each on its own."""
    names = ["warm", "cold", "partial"]
    shared = {name: os.open(tree.path / name, os.O_RDONLY) for name in names}

    def read(seed: int) -> None:
        own = random.Random(seed)
        for _ in range(60):
            name = own.choice(names)
            offset, size = own.randrange(len(FILES[name])), own.choice((1, 4096, 200_000))
            want = FILES[name][offset : offset + size]
            assert os.pread(shared[name], size, offset) == want
            with (tree.path / name).open("rb", buffering=0) as opened:
                assert os.pread(opened.fileno(), size, offset) == want

    try:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(read, [rng.randrange(1 << 30) for _ in range(8)]))
    finally:
        for fd in shared.values():
            os.close(fd)


def test_processes_in_parallel(tree: Mounted) -> None:
    paths = [str(tree.path / name) for name in sorted(FILES)]
    commands = [
        subprocess.Popen(["md5sum", *paths], stdout=subprocess.PIPE, text=True) for _ in range(6)
    ]
    shown = {command.communicate(timeout=60)[0] for command in commands}
    assert len(shown) == 1
    assert [command.returncode for command in commands] == [0] * 6


def test_complete_files_are_read_by_the_kernel_itself(tree: Mounted) -> None:
    """With passthrough an open complete file needs nobody; without, it waits for its server."""
    for name in ("warm", "cold"):
        with (tree.path / name).open("rb", buffering=0) as opened:
            if tree.transport == KERNEL:
                with tree.stopped():
                    assert os.pread(opened.fileno(), 4 * MIB, 0) == FILES[name]
            assert os.pread(opened.fileno(), 4 * MIB, 0) == FILES[name]
