"""The paragraphs of docs/SEMANTICS.md that no other test names, through the real kernel."""

from __future__ import annotations

import errno
import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cachefs.launcher.cache_record import KEPT_NAME
from tests.conformance.transports import OPTIONS, PYFUSE3, TRANSPORTS
from tests.integration.conftest import Bucket, Node, is_mounted
from tests.integration.dataset import body, digest
from tests.services.processes import NotInTime, is_running, wait_until
from worker.store import records

MIB = 1 << 20


@pytest.fixture(params=TRANSPORTS)
def transport_options(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Every paragraph holds on every transport, but for deaths."""
    return OPTIONS[request.param]


def reads(path: Path) -> bytes | int:
    """The bytes of a file, or the errno of trying."""
    try:
        return path.read_bytes()
    except OSError as err:
        return err.errno or 0


def wait_until_dead(path: Path) -> None:
    """Until reading gives ENOTCONN. Raises NotInTime with what it gave instead."""
    seen: set[bytes | int] = set()

    def is_dead() -> bool:
        seen.add(outcome := reads(path))
        return outcome == errno.ENOTCONN

    try:
        wait_until(is_dead, "the mount is dead")
    except NotInTime as err:
        told = ", ".join(f"{outcome!r:.40}" for outcome in seen)
        raise NotInTime(f"{err}; is mounted: {is_mounted(path.parent)}; reads: {told}") from err


def test_names_are_bytes(node: Node, tmp_path: Path) -> None:
    """[S-names] What the source has is shown unchanged, whatever the bytes."""
    source = tmp_path / "source"
    source.mkdir()
    names = [b"a b", b"100%25", b"#+&?", b"line\nbreak", b"\xff\xfe", "ä".encode(), b"n" * 255]
    names += [b"Case", b"case", "a\u0308".encode()]
    for name in names:
        Path(os.fsdecode(bytes(source) + b"/" + name)).write_bytes(name)
    mounted = node.mount(f"file://{source}")
    assert sorted(os.listdir(bytes(mounted))) == sorted(names)
    for name in names:
        assert Path(os.fsdecode(bytes(mounted) + b"/" + name)).read_bytes() == name
    with pytest.raises(OSError) as caught:
        os.stat(bytes(mounted) + b"/" + b"n" * 256)
    assert caught.value.errno == errno.ENAMETOOLONG


def test_directories_of_an_object_store(node: Node, bucket: Bucket) -> None:
    """[S-directories] A directory is there while a key below it, or its marker, is."""
    bucket.put("deep/er/file", b"x")
    bucket.put("marked/", b"")
    bucket.put("both/", b"")
    bucket.put("both/file", b"y")
    mounted = node.mount(bucket.url, *bucket.options, "--sync-interval", "0")
    assert sorted(os.listdir(mounted)) == ["both", "deep", "marked"]
    assert os.listdir(mounted / "marked") == []
    assert os.listdir(mounted / "both") == ["file"]
    assert (mounted / "deep/er").is_dir()
    bucket.delete("deep/er/file")
    assert not (mounted / "deep").exists()


def test_flipped_bits(node: Node, bucket: Bucket) -> None:
    """[S-bit-flips] Served until a checksum is looked at; after another boot it is, and the page
    is fetched again, that page only."""
    data = body(9, 5 * MIB)
    bucket.put("a", data)
    mounted = node.mount(bucket.url, *bucket.options)
    assert (mounted / "a").read_bytes() == data
    node.umount(mounted)
    (cache,) = node.state.glob("sources/*/cache")
    (cached,) = (path for path in cache.glob("files/*/*") if path.is_file())
    with cached.open("r+b") as file:
        file.seek(2 * MIB + 5)
        file.write(bytes([data[2 * MIB + 5] ^ 1]))
    mounted = node.mount(bucket.url, *bucket.options)
    assert (mounted / "a").read_bytes()[: 2 * MIB + 5] == data[: 2 * MIB + 5]
    node.umount(mounted)
    header = records.decode_header((cache / "TIER").read_bytes())
    assert header is not None
    lost = records.Header(header.tier, b"another boot id.", header.epoch)
    (cache / "TIER").write_bytes(records.encode_header(lost))
    node.allowed_log.append(r"checksum|verif|page")
    mounted = node.mount(bucket.url, *bucket.options)
    assert (mounted / "a").read_bytes() == data
    assert node.status(mounted)["cache"]["origin_bytes"] == MIB


def test_modes_are_enforced(node: Node, bucket: Bucket) -> None:
    """[S-access] The kernel enforces the modes shown; root's mount is seen by others."""
    bucket.put("secret", b"x")
    mounted = node.mount(bucket.url, *bucket.options, "--file-mode", "0600", "--dir-mode", "0755")
    for folder in [*mounted.parents][:-1]:
        if os.stat(folder).st_uid == os.geteuid() and str(folder) != "/tmp":
            os.chmod(folder, os.stat(folder).st_mode | 0o011)
    probe = "import os, sys; os.setgid(65534); os.setuid(65534); os.listdir(sys.argv[1]); "
    probe += "print(os.access(sys.argv[2], os.R_OK))"
    command = [sys.executable, "-I", "-c", probe, str(mounted), str(mounted / "secret")]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "False\n"
    assert (mounted / "secret").read_bytes() == b"x"


@pytest.mark.parametrize("size", [1000, 500, 2000, 20 * MIB])
def test_a_replaced_object_is_another_inode(node: Node, bucket: Bucket, size: int) -> None:
    """[S-replaced] Same length, shorter, longer: new bytes and a new inode number."""
    bucket.put("a", b"1" * 1000)
    mounted = node.mount(bucket.url, *bucket.options, "--sync-interval", "0")
    assert (mounted / "a").read_bytes() == b"1" * 1000
    before = (mounted / "a").stat().st_ino
    data = body(size, size)
    bucket.put("a", data)
    assert digest((mounted / "a").read_bytes()) == digest(data)
    assert (mounted / "a").stat().st_ino != before


def test_mappings(node: Node, bucket: Bucket) -> None:
    """[S-mmap] Shared and private mappings, cold and warm, of small and big files."""
    files = {"small": body(1, 70_001), "big": body(2, 20 * MIB + 7)}
    bucket.fill(files)
    mounted = node.mount(bucket.url, *bucket.options)
    for flags in (mmap.MAP_SHARED, mmap.MAP_PRIVATE):
        for name, data in files.items():
            with (
                (mounted / name).open("rb") as file,
                mmap.mmap(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ) as view,
            ):
                assert view[len(data) - 5 :] == data[-5:]
                assert digest(view[:]) == digest(data)


def test_reads_are_exact(node: Node, bucket: Bucket) -> None:
    """[S-reads] Any offset, any size; short only at the end, empty beyond it."""
    data = body(3, 17 * MIB + 3)
    bucket.put("a", data)
    mounted = node.mount(bucket.url, *bucket.options)
    fd = os.open(mounted / "a", os.O_RDONLY)
    try:
        for offset in (16 * MIB + 1, 0, 8 * MIB - 1, len(data) - 1, len(data), len(data) + 5):
            for size in (0, 1, 4096, MIB + 1):
                assert os.pread(fd, size, offset) == data[offset : offset + size]
    finally:
        os.close(fd)


def test_interval_zero_asks_every_time(node: Node, bucket: Bucket) -> None:
    """[S-sync] With 0 a change is seen by the next access."""
    bucket.put("here", b"x")
    mounted = node.mount(bucket.url, *bucket.options, "--sync-interval", "0")
    for round_ in range(3):
        assert not (mounted / "new").exists()
        bucket.put("new", str(round_).encode())
        assert (mounted / "new").read_bytes() == str(round_).encode()
        bucket.delete("new")


def test_interval_minus_one_never_asks_again(node: Node, bucket: Bucket) -> None:
    """[S-sync] With -1 what was listed stays as it was."""
    bucket.put("a", b"x")
    mounted = node.mount(bucket.url, *bucket.options, "--sync-interval=-1")
    assert os.listdir(mounted) == ["a"]
    bucket.put("b", b"y")
    node.umount(mounted)
    mounted = node.mount(bucket.url, *bucket.options, "--sync-interval=-1")
    assert os.listdir(mounted) == ["a"]


@pytest.mark.parametrize("transport_options", [OPTIONS[PYFUSE3]])
def test_a_killed_client(node: Node, bucket: Bucket) -> None:
    """[S-crash] With pyfuse3 it leaves ENOTCONN, cleared by the next mount; the cache is kept."""
    data = body(8, 3 * MIB)
    bucket.put("a", data)
    mounted = node.mount(bucket.url, *bucket.options)
    assert (mounted / "a").read_bytes() == data
    node.allowed_log.append("does not answer")  # the server that ends with its last mount
    client = next(p["pid"] for p in node.processes(mounted) if p["role"] == "client")
    os.kill(client, signal.SIGKILL)
    wait_until(lambda: not is_running(client), "the client is dead")
    wait_until_dead(mounted / "a")
    mounted = node.mount(bucket.url, *bucket.options)
    assert (mounted / "a").read_bytes() == data
    assert node.status(mounted)["cache"]["origin_bytes"] in (0, len(data))
    node.umount(mounted)


def test_umount_leaves_nothing(node: Node, bucket: Bucket) -> None:
    """[S-umount] No process, no record, no socket; and the command says so of what is no mount.
    What names the cache that stays (`kept.json`) stays with it."""
    bucket.put("a", b"x")
    mounted = node.mount(bucket.url, *bucket.options)
    pids = [process["pid"] for process in node.processes(mounted)]
    node.ok("umount", mounted)
    assert not is_mounted(mounted)
    wait_until(lambda: not any(map(is_running, pids)), "all of its processes end")
    left = [path.name for path in node.state.rglob("*") if path.suffix in (".sock", ".json")]
    assert left == [KEPT_NAME]
    assert "not a cachefs mount" in node.fails("umount", mounted)


def test_mounts_of_one_source_share_inodes(node: Node, bucket: Bucket) -> None:
    """[S-shared-server] One server, one cache, one set of inode numbers."""
    bucket.put("a", b"x" * 5000)
    one = node.mount(bucket.url, *bucket.options)
    two = node.mount(bucket.url, *bucket.options, name="two")
    assert (one / "a").read_bytes() == (two / "a").read_bytes()
    assert (one / "a").stat().st_ino == (two / "a").stat().st_ino
    assert node.status(one)["cache"]["origin_bytes"] == 5000
    server = {p["pid"] for p in node.processes(one) if p["role"] == "server"}
    node.umount(one)
    assert all(map(is_running, server))
    node.umount(two)
    wait_until(lambda: not any(map(is_running, server)), "the server ends with the last mount")
