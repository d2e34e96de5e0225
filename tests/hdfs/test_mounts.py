"""Mounts of HDFS: what programs see, and one line for each source that cannot be mounted."""

from __future__ import annotations

import concurrent.futures
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hdfs.conftest import Source
from tests.integration.conftest import Node, is_mounted
from tests.services.s3_server import free_port

BIG = random.Random(3).randbytes((20 << 20) + 7)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    user = Node(tmp_path, {})
    try:
        yield user
    finally:
        left = user.clean_up()
    assert not left, "\n".join(["processes left behind:", *left])
    assert user.unexpected() == []


def refused(node: Node, source: str, *options: str) -> str:
    """The one line of a mount that must fail."""
    node.allowed_log.append("ERROR")
    where = node.mountpoint()
    line = node.fails("mount", source, where, *options)
    assert line.startswith("cachefs: ")
    assert not is_mounted(where)
    return line


def test_a_mount_reads_and_lists(node: Node, source: Source) -> None:
    files = {"a/small": b"small", "a/ümlaut": b"u", "big": BIG, "empty": b""}
    for name, data in files.items():
        source.write(name, data)
    source.client.set_permission(f"{source.root}/a/small", 0o600)
    mount = node.mount(source.spec.url)
    assert sorted(os.listdir(mount)) == ["a", "big", "empty"]
    assert sorted(os.listdir(mount / "a")) == ["small", "ümlaut"]
    for _ in range(2):
        for name, data in files.items():
            assert (mount / name).read_bytes() == data
    assert (mount / "a/small").stat().st_mode & 0o777 == 0o600
    status = source.client.get_file_info(f"{source.root}/big")
    assert (mount / "big").stat().st_mtime_ns == status.modification_time * 10**6


def test_a_change_is_seen(node: Node, source: Source) -> None:
    source.write("f", b"old")
    mount = node.mount(source.spec.url, "--sync-interval", "0")
    assert (mount / "f").read_bytes() == b"old"
    source.write("f", b"NEW")
    assert (mount / "f").read_bytes() == b"NEW"
    source.write("g", b"g")
    assert sorted(os.listdir(mount)) == ["f", "g"]


def test_readers_of_a_mount_do_not_notice_a_killed_datanode(node: Node, source: Source) -> None:
    files = {f"f{number:02}": BIG[number:][: 110 << 10] for number in range(32)}
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda name: source.write(name, files[name]), files))
    source.write("big", BIG)
    mount = node.mount(source.spec.url)
    with (mount / "big").open("rb") as big:
        data = big.read(1)
        source.cluster.datanodes[0].kill()
        data += big.read()
    assert data == BIG
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda name: (mount / name).read_bytes(), files))
    assert found == [*files.values()]


def test_a_mount_of_a_user(node: Node, source: Source) -> None:
    source.write("f", b"for the team")
    source.client.set_owner(source.root, "alice", "team")
    source.client.set_permission(source.root, 0o750)
    line = refused(node, source.spec.url, "--option", "user=eve")
    assert "user=eve" in line
    mount = node.mount(source.spec.url, "--option", "user=bob")
    assert (mount / "f").read_bytes() == b"for the team"


def test_bad_sources(node: Node, source: Source, tmp_path: Path) -> None:
    url = source.spec.url
    assert "no such file or directory" in refused(node, f"{url}/nothing/there")
    source.write("f", b"")
    assert "not a directory" in refused(node, f"{url}/f")
    line = refused(node, f"hdfs://127.0.0.1:{free_port()}/a")
    assert "refused" in line
    assert "NameNode" in line
    line = refused(node, "hdfs://no-such-host.invalid/a")
    assert "cannot be resolved" in line
    assert "conf_dir" in line
    assert "host name" in refused(
        node, "hdfs://wrong-service/a", "--option", f"conf_dir={tmp_path}"
    )
    assert "no such directory" in refused(node, url, "--option", "conf_dir=/no/such/dir")
    assert "did you mean user?" in refused(node, url, "--option", "users=alice")
