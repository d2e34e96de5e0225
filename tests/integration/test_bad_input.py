"""What bad input gets: one line with cause and remedy, an exit code, nothing mounted or running."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.integration.conftest import Bucket, Node, is_mounted
from tests.services.s3_server import free_port


def servers_of(node: Node) -> list[str]:
    """Command lines of processes that were started for this node's home."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if f"HOME={node.home}\0".encode() in environment:
            found.append(command)
    return found


@pytest.fixture
def refused(node: Node, bucket: Bucket):  # type: ignore[no-untyped-def]
    """`refused(source, *options)`: the one line of a mount that must fail and leave nothing."""
    bucket.put("dir/a", b"x")
    node.allowed_log.append(r"ERROR")

    def mount(
        source: str, *options: str | Path, mountpoint: Path | None = None, **more: object
    ) -> str:
        where = mountpoint or node.mountpoint()
        line = node.fails("mount", source, where, *options, **more)
        assert line.startswith("cachefs: ")
        assert mountpoint is not None or not is_mounted(where)
        assert servers_of(node) == []
        return line

    return mount


def test_unknown_scheme(refused) -> None:  # type: ignore[no-untyped-def]
    line = refused("ftp://host/path")
    assert "ftp" in line
    assert "s3://" in line


def test_no_such_bucket_or_prefix(refused, bucket: Bucket) -> None:  # type: ignore[no-untyped-def]
    assert "no-such-bucket-here" in refused("s3://no-such-bucket-here", *bucket.options)
    assert "nothing/there" in refused(f"{bucket.url}/nothing/there", *bucket.options)
    assert "/no/such/dir" in refused("file:///no/such/dir")


def test_credentials(refused, bucket: Bucket, node: Node) -> None:  # type: ignore[no-untyped-def]
    bad = {"AWS_SECRET_ACCESS_KEY": "wrong"}
    line = refused(bucket.url, *bucket.options, env=bad)
    assert "denied" in line or "credentials" in line
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        del node.environment[name]
    line = refused(bucket.url, *bucket.options)
    assert "credentials" in line
    assert "wrong" not in node.logs()


def test_unknown_profile(refused, bucket: Bucket) -> None:  # type: ignore[no-untyped-def]
    assert "nobody" in refused(bucket.url, *bucket.options, "--aws-profile", "nobody")


def test_unreachable_at_the_first_mount(refused, bucket: Bucket) -> None:  # type: ignore[no-untyped-def]
    port = free_port()
    line = refused(bucket.url, "--endpoint-url", f"http://127.0.0.1:{port}")
    assert str(port) in line


def test_mount_point(refused, bucket: Bucket, node: Node, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    missing = tmp_path / "missing"
    assert "does not exist" in refused(bucket.url, *bucket.options, mountpoint=missing)
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").touch()
    assert "not empty" in refused(bucket.url, *bucket.options, mountpoint=full)
    assert "not a directory" in refused(bucket.url, *bucket.options, mountpoint=full / "file")


def test_mount_point_in_use(node: Node, bucket: Bucket) -> None:
    bucket.put("a", b"x")
    mounted = node.mount(bucket.url, *bucket.options)
    line = node.fails("mount", bucket.url, mounted, *bucket.options)
    assert "already" in line or "in use" in line
    assert (mounted / "a").read_bytes() == b"x"
    node.umount(mounted)


@pytest.mark.parametrize(
    ("option", "value"),
    [("--cache-size", "20 apples"), ("--sync-interval", "soon"), ("--cache-size", "-1")],
)
def test_bad_size_or_duration(refused, bucket: Bucket, option: str, value: str) -> None:  # type: ignore[no-untyped-def]
    assert value in refused(bucket.url, *bucket.options, f"{option}={value}")


def test_unknown_key_in_the_config_file(refused, bucket: Bucket, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    config = tmp_path / "cachefs.toml"
    config.write_text('cache_sise = "1GiB"\n')
    line = refused(bucket.url, *bucket.options, "--config", config)
    assert "cache_sise" in line
    assert "cache_size" in line
    assert str(config) in line


def test_more_cache_than_disk(refused, bucket: Bucket, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", disk], check=True)
    try:
        line = refused(
            bucket.url, *bucket.options, "--cache-dir", disk / "c", "--cache-size", "1GiB"
        )
        assert "room" in line or "free" in line
    finally:
        subprocess.run(["umount", disk], check=True)


def test_cache_directory_of_somebody_else(
    refused,
    bucket: Bucket,
    tmp_path: Path,  # type: ignore[no-untyped-def]
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o755)
    os.chown(theirs, 12345, 12345)
    line = refused(bucket.url, *bucket.options, "--cache-dir", theirs)
    assert str(theirs) in line


def test_umount_of_what_is_no_mount(node: Node, tmp_path: Path) -> None:
    assert "not a cachefs mount" in node.fails("umount", tmp_path)


def test_debug_shows_the_traceback(node: Node, tmp_path: Path) -> None:
    node.allowed_log.append("ERROR")
    done = node.run("mount", "ftp://x/y", node.mountpoint(), "--debug")
    assert done.returncode != 0
    assert "Traceback" in done.stderr
