"""A mounted bucket through the real kernel, with the tools that people use."""

from __future__ import annotations

import concurrent.futures
import errno
import mmap
import os
import stat
import subprocess
from pathlib import Path

import pytest

from tests.integration.conftest import Bucket, Node
from tests.integration.dataset import body, digest, digests, expected, images

MIB = 1 << 20


def sh(*command: str | Path, **options: object) -> str:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


@pytest.fixture
def files() -> dict[str, bytes]:
    return {
        **images(40),
        "shards/big.tar": body(1000, 20 * MIB + 12345),
        "shards/exact.bin": body(1001, 8 * MIB),
        "shards/over.bin": body(1002, 8 * MIB + 1),
        "empty": b"",
        "one": b"x",
        "notes/läs mig.txt": "hyvää päivää\n".encode() * 3,
        "notes/100% #1 a+b.txt": b"percent and hash\n",
    }


@pytest.fixture
def mounted(node: Node, bucket: Bucket, files: dict[str, bytes]) -> Path:
    bucket.fill(files)
    return node.mount(bucket.url, *bucket.options)


def test_real_tools_see_the_bucket(mounted: Path, files: dict[str, bytes], tmp_path: Path) -> None:
    """[S-tools] md5sum, cp -r, find, tar, grep -r and ls -l read what the bucket holds."""
    want = expected(files)
    names = sh("find", mounted, "-type", "f", "-printf", "%P\n").splitlines()
    assert sorted(names) == sorted(want)
    sums = sh("md5sum", *[mounted / name for name in sorted(want)])
    assert [line.split()[0].lstrip("\\") for line in sums.splitlines()] == [
        want[name] for name in sorted(want)
    ]
    sh("cp", "-r", mounted, tmp_path / "copy")
    assert digests(tmp_path / "copy") == want
    sh("tar", "-C", mounted, "-cf", tmp_path / "all.tar", ".")
    (tmp_path / "untar").mkdir()
    sh("tar", "-C", tmp_path / "untar", "-xf", tmp_path / "all.tar")
    assert digests(tmp_path / "untar") == want
    assert sh("grep", "-rl", "percent and hash", mounted / "notes").strip().endswith("a+b.txt")
    assert " 20983865 " in sh("ls", "-l", mounted / "shards")


def test_ranges_and_mappings(mounted: Path, files: dict[str, bytes]) -> None:
    big = files["shards/big.tar"]
    with (mounted / "shards/big.tar").open("rb", buffering=0) as file:
        for offset, size in [(0, 1), (len(big) - 5, 100), (MIB - 1, 2), (7 * MIB, 3 * MIB)]:
            assert os.pread(file.fileno(), size, offset) == big[offset : offset + size]
        assert os.pread(file.fileno(), 10, len(big) + 10) == b""
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
            assert digest(view[:]) == digest(big)


def test_sixteen_readers_of_one_cold_file(
    node: Node, mounted: Path, files: dict[str, bytes]
) -> None:
    def read(_: int) -> str:
        return digest((mounted / "shards/big.tar").read_bytes())

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert set(pool.map(read, range(16))) == {digest(files["shards/big.tar"])}
    assert node.status(mounted)["cache"]["origin_bytes"] == len(files["shards/big.tar"])


def test_many_cold_small_files_are_read_once(node: Node, bucket: Bucket) -> None:
    files = images(2000, size=2000, folders=10)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda item: bucket.put(*item), files.items()))
    mounted = node.mount(bucket.url, *bucket.options)

    def read(name: str) -> bool:
        return (mounted / name).read_bytes() == files[name]

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert all(pool.map(read, files))
    cache = node.status(mounted)["cache"]
    assert cache["origin_bytes"] == sum(map(len, files.values()))
    assert digests(mounted) == expected(files)
    assert node.status(mounted)["cache"]["origin_bytes"] == cache["origin_bytes"]


def test_attributes(mounted: Path, files: dict[str, bytes], bucket: Bucket) -> None:
    """[S-attributes] Sizes, times and default modes are the origin's and the mount's."""
    info = (mounted / "one").stat()
    assert (info.st_size, info.st_nlink, stat.S_IMODE(info.st_mode)) == (1, 1, 0o644)
    modified = bucket.client.head_object(Bucket=bucket.name, Key="one")["LastModified"]
    assert info.st_mtime == modified.timestamp()
    assert stat.S_IMODE((mounted / "train").stat().st_mode) == 0o755
    assert (info.st_uid, info.st_gid) == (os.geteuid(), os.getegid())


def test_writes_are_refused(mounted: Path) -> None:
    """[S-read-only] Every change gets EROFS."""
    attempts = [
        lambda: (mounted / "new").write_bytes(b"x"),
        lambda: (mounted / "one").open("r+b"),
        lambda: (mounted / "one").unlink(),
        lambda: (mounted / "dir").mkdir(),
        lambda: (mounted / "one").rename(mounted / "two"),
        lambda: os.truncate(mounted / "one", 0),
        lambda: os.symlink("a", mounted / "link"),
    ]
    for attempt in attempts:
        with pytest.raises(OSError) as caught:
            attempt()
        assert caught.value.errno == errno.EROFS


def test_missing_names(mounted: Path) -> None:
    """[S-errors] No such key is ENOENT, a file is no directory."""
    for path, number in [("nothing", errno.ENOENT), ("one/below", errno.ENOTDIR)]:
        with pytest.raises(OSError) as caught:
            (mounted / path).read_bytes()
        assert caught.value.errno == number
    with pytest.raises(OSError) as caught:
        os.stat(mounted / ("n" * 256))
    assert caught.value.errno == errno.ENAMETOOLONG


def test_statfs_is_nominal(mounted: Path) -> None:
    """[S-statfs] There is always room; cache figures are `status`'s."""
    info = os.statvfs(mounted)
    assert info.f_bavail > 0
    assert info.f_blocks * info.f_frsize >= 1 << 40
    assert info.f_namemax == 255


def test_a_large_directory_streams(node: Node, tmp_path: Path) -> None:
    """[S-readdir] Order, seekdir and completeness of a directory with many pages."""
    source = tmp_path / "source"
    source.mkdir()
    for i in range(5000):
        (source / f"f{i:06d}").touch()
    mounted = node.mount(f"file://{source}")
    names = os.listdir(mounted)
    assert sorted(names) == [f"f{i:06d}" for i in range(5000)]
    assert len(set(names)) == 5000
    with os.scandir(mounted) as entries:
        assert sum(entry.is_file() for entry in entries) == 5000
