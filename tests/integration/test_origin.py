"""The origin changes, fails, lies or is gone: what a reader of the mount sees."""

from __future__ import annotations

import concurrent.futures
import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.integration.conftest import Bucket, Node
from tests.integration.dataset import body, digest, digests, expected, images
from tests.services.processes import wait_until
from tests.services.proxy import (
    FaultProxy,
    altered_length,
    cut_body,
    expired_credentials,
    hang,
    ignore_if_match,
    short_body,
    status,
    wrong_etag,
)
from tests.services.s3_server import S3Server

MIB = 1 << 20
DEADLINE = ("--origin-deadline", "3s")


def read_error(path: Path) -> int:
    with pytest.raises(OSError) as caught:
        path.read_bytes()
    assert caught.value.errno is not None
    return caught.value.errno


# ---- changes ----


def test_new_replaced_and_deleted_objects(node: Node, bucket: Bucket) -> None:
    """[S-sync] [C-interval] Within the sync interval new names appear (absent ones too), replaced
    objects are other inodes with their new bytes, deleted ones are gone."""
    bucket.fill({"a": b"old", "gone": b"x"})
    mounted = node.mount(bucket.url, *bucket.options, "--sync-interval", "1s")
    assert (mounted / "a").read_bytes() == b"old"
    inode = (mounted / "a").stat().st_ino
    assert not (mounted / "new").exists()
    assert sorted(os.listdir(mounted)) == ["a", "gone"]
    bucket.fill({"a": b"newer", "new": b"y"})
    bucket.delete("gone")
    wait_until(lambda: (mounted / "new").exists(), "the new object appears", 10)
    wait_until(lambda: not (mounted / "gone").exists(), "the deleted object goes", 10)
    wait_until(lambda: (mounted / "a").read_bytes() == b"newer", "the new bytes come")
    assert (mounted / "a").stat().st_ino != inode
    assert (mounted / "a").stat().st_size == 5
    assert sorted(os.listdir(mounted)) == ["a", "new"]


def test_same_length_replacement_is_seen(node: Node, bucket: Bucket) -> None:
    bucket.put("a", b"1111")
    mounted = node.mount(bucket.url, *bucket.options, "--sync-interval", "0")
    for text in (b"2222", b"3333"):
        assert len((mounted / "a").read_bytes()) == 4
        bucket.put("a", text)
        wait_until(lambda t=text: (mounted / "a").read_bytes() == t, "the new bytes come")


def test_an_open_file_never_mixes_versions(node: Node, bucket: Bucket) -> None:
    """[S-open-handles] [C-open] An old handle gets its old bytes or ESTALE, never a mix."""
    old, new = body(1, 40 * MIB), body(2, 40 * MIB)
    bucket.put("big", old)
    mounted = node.mount(bucket.url, *bucket.options, "--sync-interval", "1s")
    node.allowed_log.append("changed at its origin")
    with (mounted / "big").open("rb", buffering=0) as file:
        assert os.pread(file.fileno(), 4096, 0) == old[:4096]
        bucket.put("big", new)
        ended = None
        for offset in range(0, len(old), MIB):
            try:
                piece = os.pread(file.fileno(), MIB, offset)
            except OSError as err:
                ended = err.errno
                break
            assert piece == old[offset : offset + MIB]
        assert ended in (None, errno.ESTALE, errno.EIO)  # EIO: the page cache's word for it
    wait_until(lambda: _reads(mounted / "big", new), "the new version")


def test_changed_between_lookup_and_open(node: Node, bucket: Bucket) -> None:
    """open of a file that changed at the origin succeeds with the new bytes: ESTALE once, and the
    kernel looks up again by itself."""
    bucket.put("a", b"old bytes")
    mounted = node.mount(bucket.url, *bucket.options, "--sync-interval", "1h")
    node.allowed_log.append("changed at its origin")
    assert (mounted / "a").stat().st_size == 9
    bucket.put("a", b"new and longer bytes")
    assert (mounted / "a").read_bytes() == b"new and longer bytes"


# ---- faults ----


@pytest.mark.parametrize(
    "fault",
    [
        status(503, code="SlowDown"),
        status(500),
        cut_body(100_000),
        short_body(5000),
    ],
    ids=["slow-down", "internal-error", "cut", "short"],
)
def test_passing_faults_are_not_seen(
    node: Node, bucket: Bucket, proxy: FaultProxy, fault: object
) -> None:
    files = {"small": body(1, 300_000), "big": body(2, 24 * MIB)}
    bucket.fill(files)
    mounted = node.mount(bucket.url, *bucket.options)
    assert sorted(os.listdir(mounted)) == sorted(files)
    node.allowed_log.append("retry|again|cut|short|SlowDown|Internal")
    armed = proxy.script(fault, method="GET", key=r"small|big", times=3)  # type: ignore[arg-type]
    assert digests(mounted) == expected(files)
    assert armed.hits == 3


def test_cut_connections_cost_a_page_each(node: Node, bucket: Bucket, proxy: FaultProxy) -> None:
    data = body(3, 32 * MIB)
    bucket.put("big", data)
    mounted = node.mount(bucket.url, *bucket.options)
    node.allowed_log.append("cut|again|retry")
    cuts = 5
    proxy.script(cut_body(3 * MIB + 500_000), method="GET", key="big", times=cuts)
    before = proxy.counters().object_bytes
    assert digest((mounted / "big").read_bytes()) == digest(data)
    fetched = proxy.counters().object_bytes - before
    assert fetched <= len(data) + cuts * MIB


DOWNWARDS = """import hashlib, mmap, os, sys
MIB, fd = 1 << 20, os.open(sys.argv[1], os.O_RDONLY)
size = os.fstat(fd).st_size
found = bytearray(size)
mapped = mmap.mmap(fd, size, prot=mmap.PROT_READ)
if sys.argv[2] == "read":
    for at in range(size // MIB * MIB, -1, -MIB):
        found[at : at + MIB] = os.pread(fd, MIB, at)
else:
    for start in range(0, size, 8 * MIB):
        end = min(start + 8 * MIB, size)
        for at in range((end - 1) & -8192, start - 1, -8192):
            found[at : min(at + 8192, end)] = mapped[at : min(at + 8192, end)]
print(hashlib.md5(found).hexdigest())
"""


@pytest.mark.parametrize("way", ["read", "map"])
def test_downward_reads_fetch_each_byte_once(
    node: Node, bucket: Bucket, proxy: FaultProxy, way: str
) -> None:
    """From the end by blocks, and slice by slice, each from its end. A process of its own reads,
    since a thread that waits for a page of a map keeps those of the proxy from running."""
    data = body(5, 40 * MIB + 12_345)
    bucket.put("big", data)
    mounted = node.mount(bucket.url, *bucket.options)
    before = proxy.counters().object_bytes
    command = [sys.executable, "-c", DOWNWARDS, str(mounted / "big"), way]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == digest(data)
    assert proxy.counters().object_bytes - before == len(data)


@pytest.mark.parametrize("fault", [wrong_etag(), altered_length(7)], ids=["etag", "length"])
def test_what_is_not_the_object_never_becomes_bytes(
    node: Node, bucket: Bucket, proxy: FaultProxy, fault: object
) -> None:
    data = body(4, 200_000)
    bucket.put("a", data)
    mounted = node.mount(bucket.url, *bucket.options, *DEADLINE)
    assert os.listdir(mounted) == ["a"]
    node.allowed_log.append(r"WARNING|ERROR")
    proxy.script(fault, method="GET", key="a", times=None)  # type: ignore[arg-type]
    assert read_error(mounted / "a") in (errno.EIO, errno.ESTALE)
    proxy.clear()
    wait_until(lambda: _reads(mounted / "a", data), "the object reads again")


def _reads(path: Path, data: bytes) -> bool:
    """An error is no answer yet: a handle of the version before may meet ESTALE."""
    try:
        return path.read_bytes() == data
    except OSError:
        return False


def test_a_server_that_ignores_if_match(node: Node, moto: S3Server) -> None:
    """moto checks no signatures, so the proxy may take headers away."""
    bucket = Bucket(moto, "ignores-if-match")
    node.environment.update(moto.credentials())
    with FaultProxy(bucket.endpoint_url) as proxy:
        bucket.endpoint_url = proxy.endpoint_url
        bucket.put("a", b"old bytes")
        mounted = node.mount(bucket.url, *bucket.options, "--sync-interval", "1h")
        node.allowed_log.append("changed at its origin")
        assert (mounted / "a").stat().st_size == 9
        bucket.put("a", b"new bytes")  # the same length
        armed = proxy.script(ignore_if_match(), method="GET", key="^a$", times=None)
        assert (mounted / "a").read_bytes() == b"new bytes"
        assert armed.hits >= 1
        node.umount(mounted)


def test_access_denied_is_eacces_and_expired_credentials_say_so(
    node: Node, bucket: Bucket, proxy: FaultProxy
) -> None:
    bucket.fill({"a": b"x", "b": b"y"})
    mounted = node.mount(bucket.url, *bucket.options, *DEADLINE)
    assert sorted(os.listdir(mounted)) == ["a", "b"]
    node.allowed_log.append(r"WARNING|ERROR")
    proxy.script(status(403, code="AccessDenied"), method="GET", key="^a$", times=None)
    proxy.script(expired_credentials(), method="GET", key="^b$", times=None)
    assert read_error(mounted / "a") == errno.EACCES
    assert read_error(mounted / "b") == errno.EACCES
    wait_until(lambda: "expired" in node.logs().lower(), "the log says so")


def test_other_failures_are_eio_after_the_deadline_with_one_line(
    node: Node, bucket: Bucket, proxy: FaultProxy
) -> None:
    """[S-errors] EIO after the deadline; the log says path, cause and request id in one line."""
    bucket.fill({"dir/a": b"x"})
    mounted = node.mount(bucket.url, *bucket.options, *DEADLINE)
    assert os.listdir(mounted / "dir") == ["a"]
    node.allowed_log.append(r"dir/a")
    proxy.script(status(500), method="GET", key="dir/a", times=None)
    assert read_error(mounted / "dir/a") == errno.EIO

    def is_told() -> bool:
        return any("dir/a" in line and "PROXY500" in line for line in node.logs().splitlines())

    wait_until(is_told, "the log has such a line")


def test_the_origin_is_off_and_everything_cached_reads(
    node: Node, bucket: Bucket, proxy: FaultProxy
) -> None:
    """[S-origin-down] [C-down] After a remount too; what is not cached is EIO after the
    deadline."""
    files = {**images(12), "big": body(5, 10 * MIB)}
    bucket.fill({**files, "cold": b"never read"})
    mounted = node.mount(bucket.url, *bucket.options, "--sync-interval", "1s", *DEADLINE)
    assert digests_but(mounted, "cold") == expected(files)
    proxy.offline()
    node.allowed_log.append(r"WARNING|ERROR")
    assert digests_but(mounted, "cold") == expected(files)
    node.umount(mounted)
    said = node.run("mount", bucket.url, mounted, *bucket.options, *DEADLINE)
    assert said.returncode == 0, said.stderr
    assert "warning" in said.stderr
    assert digests_but(mounted, "cold") == expected(files)
    assert read_error(mounted / "cold") == errno.EIO
    proxy.online()
    wait_until(lambda: _reads(mounted / "cold", b"never read"), "the origin is back", 30)


def digests_but(root: Path, *names: str) -> dict[str, str]:
    files = (p for p in sorted(root.rglob("*")) if p.is_file() and p.name not in names)
    return {str(p.relative_to(root)): digest(p.read_bytes()) for p in files}


# ---- interrupts ----


def test_an_interrupt_ends_a_cold_open_and_not_the_fill(
    node: Node, bucket: Bucket, proxy: FaultProxy
) -> None:
    """[S-interrupt] Ctrl-C on a cold open returns at once; the fill goes on for others."""
    data = body(6, 500_000)
    bucket.put("a", data)
    mounted = node.mount(bucket.url, *bucket.options)
    assert os.listdir(mounted) == ["a"]
    gate = threading.Event()
    proxy.script(hang(gate), method="GET", key="a")
    command = [sys.executable, "-c", INTERRUPTED_READER, str(mounted / "a")]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        other = pool.submit((mounted / "a").read_bytes)
        proxy.wait_until(lambda seen: seen.requests_by_key["a"] >= 1)
        with subprocess.Popen(command, stdout=subprocess.PIPE) as reader:
            wait_until(lambda: _waits_in_fuse(reader.pid), "the reader waits")
            reader.send_signal(signal.SIGINT)
            out, _ = reader.communicate(timeout=20)
        assert out == b"interrupted\n"
        assert not other.done()
        gate.set()
        assert other.result(30) == data
    assert proxy.counters().requests_by_key["a"] == 1


INTERRUPTED_READER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # where the tests run without a terminal
try:
    open(sys.argv[1], "rb").read()
except KeyboardInterrupt:
    print("interrupted")
"""


def _waits_in_fuse(pid: int) -> bool:
    return "fuse" in Path(f"/proc/{pid}/wchan").read_text() or (
        "request_wait" in Path(f"/proc/{pid}/stack").read_text()
    )
