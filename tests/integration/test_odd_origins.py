"""Origins whose answers are odd or hostile, and files that change behind their mtime: through a
master, and through real mounts."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cachefs.core.model import ROOT_INO, Inode, UfsSpec
from connectors.compose import open_connector
from connectors.meter import Meter
from master.namespace import Master
from tests.integration.conftest import Node
from tests.integration.test_master import Clock, run
from tests.unit.connectors.odd_objects import DATA, ODD, SIZES, odd_script
from tests.unit.connectors.scripted_s3 import (
    Answer,
    Request,
    ScriptedS3,
    head,
    listing,
    ranged,
    scripted_s3,
)
from tests.unit.connectors.test_file_versions import CHANGES, MTIME_NS, NAMES, NEW, OLD, Change
from tests.unit.connectors.test_file_versions import write as write_file

NS = 10**9
NAMELESS_PAGES = 300
ENDLESS_LIMIT_S = 30.0  # for those pages, of a server that answers at once


@pytest.fixture
def server() -> Iterator[ScriptedS3]:
    with scripted_s3() as found:
        yield found


def mount(node: Node, server: ScriptedS3, *options: str) -> Path:
    return node.mount("s3://bucket", "--endpoint-url", server.url, *options)


def test_a_master_keeps_what_it_lists_beside_odd_objects(
    server: ScriptedS3, tmp_path: Path
) -> None:
    """Also over a restart: the store holds every time, and a stat says what the listing said."""
    server.script = odd_script
    options = {"endpoint_url": server.url, "anonymous": "true", "region": "us-east-1"}
    ufs = UfsSpec("s3://bucket", options)

    async def names() -> dict[str, Inode]:
        origin = open_connector(ufs, deadline_s=5, meter=Meter())
        master = Master.open(tmp_path / "meta", ufs, origin, 60.0, Clock())
        try:
            page = await master.list_dir(ROOT_INO, b"", 1000)
            found = {
                entry.name.decode(): msgspec.msgpack.decode(entry.inode, type=Inode)
                for entry in page.entries
            }
            for name, inode in found.items():
                assert (await master.lookup(ROOT_INO, name.encode())).inode == inode
            return found
        finally:
            await master.close()

    async def work() -> None:
        found = await names()
        assert found.keys() == {*ODD, "right"}
        for name, (_, _, seconds) in ODD.items():
            assert found[name].mtime_ns == seconds * NS
        assert await names() == found

    run(work())


def test_one_odd_object_hides_nothing_else(node: Node, server: ScriptedS3) -> None:
    """[S-odd-objects] Times are clamped; an object of a size that no file has is hidden and
    counted."""
    server.script = odd_script
    mounted = mount(node, server)
    assert set(os.listdir(mounted)) == {*ODD, "right"}
    for name, (_, _, seconds) in ODD.items():
        assert (mounted / name).stat().st_mtime_ns == seconds * NS
        assert (mounted / name).read_bytes() == DATA
    for name in SIZES:
        with pytest.raises(FileNotFoundError):
            os.stat(mounted / name)
    assert node.status(mounted)["sources"][0]["hidden_keys"] == len(SIZES)
    assert len(node.ok("ls", "-l", mounted).splitlines()) == len(ODD) + 1
    node.umount(mounted)


def test_a_file_of_an_absurd_size_is_shown_and_not_opened(node: Node, server: ScriptedS3) -> None:
    """[S-odd-objects] [S-errors] EFBIG."""
    size = (1 << 63) - 1

    def script(request: Request) -> Answer:
        if request.method == "HEAD":
            return head("e1", size)
        return listing(("vast", size)) if "?" in request.target else ranged(request, DATA)

    server.script = script
    mounted = mount(node, server)
    assert (mounted / "vast").stat().st_size == size
    with pytest.raises(OSError, match=re.escape(f"[Errno {errno.EFBIG}]")):
        (mounted / "vast").open()
    node.umount(mounted)


def endless_script(request: Request) -> Answer:
    """A bucket with a file, and a directory whose listing has no end: many pages without a name,
    the last of which names itself as the next one."""
    if request.method == "HEAD":
        return head("e1", 3)
    if "endless" not in request.target:
        found = listing(("f", 3))
        prefixes = b"<CommonPrefixes><Prefix>endless/</Prefix></CommonPrefixes>"
        found.body = found.body.replace(b"</ListBucketResult>", prefixes + b"</ListBucketResult>")
        return found if "?" in request.target else ranged(request, DATA)
    number = re.search(r"continuation-token=(\d+)", request.target)
    token = min(int(number[1]) + 1, NAMELESS_PAGES) if number else 1
    more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>"
    return Answer(body=f"<ListBucketResult>{more}</ListBucketResult>".encode())


def test_a_listing_without_an_end_is_an_error_of_its_directory(
    node: Node, server: ScriptedS3
) -> None:
    """[S-listings-end] Other names are read meanwhile and afterwards. The tests of the connector
    have listings of 10,000 pages without a name, which take half a minute here."""
    server.script = endless_script
    node.allowed_log.append("a page of the listing names itself as the next one")
    mounted = mount(node, server)
    assert set(os.listdir(mounted)) == {"f", "endless"}
    began_s = time.monotonic()
    with pytest.raises(OSError, match=re.escape(f"[Errno {errno.EIO}]")):
        os.listdir(mounted / "endless")
    assert time.monotonic() - began_s < ENDLESS_LIMIT_S
    assert sum("endless" in request.target for request in server.requests) > NAMELESS_PAGES
    assert (mounted / "f").read_bytes() == DATA
    node.umount(mounted)


def long_refusal(request: Request) -> Answer:
    """Entities make a message of 8 MB of a document of 30 KB."""
    if request.method == "HEAD":
        return head("e1", 3)
    if "?" in request.target:
        return listing(("f", 3))
    entity, uses = "x" * 30_000, "&x;" * 260
    text = f'<!DOCTYPE e [<!ENTITY x "{entity}">]><Error><Message>{uses}</Message></Error>'
    return Answer(403, text.encode(), {"x-amz-request-id": "R" * 50_000})


def test_the_words_of_a_refusal_do_not_end_the_servers_connections(
    node: Node, server: ScriptedS3
) -> None:
    """[S-errors-are-short] The reader gets the error of the refusal, and status answers."""
    server.script = long_refusal
    node.allowed_log.append("access denied")
    mounted = mount(node, server)
    for _ in range(3):
        with pytest.raises(PermissionError):
            (mounted / "f").read_bytes()
    assert node.status(mounted)["state"] == "ok"
    logs = [path for path in node.home.rglob("*.log") if path.is_file()]
    assert max(len(line) for log in logs for line in log.read_text().splitlines()) < 10_000
    node.umount(mounted)


def chunked_without_etag(request: Request) -> Answer:
    """A right answer, as few servers give it."""
    if request.method == "HEAD":
        return head("e1", len(OLD))
    if "?" in request.target:
        is_root = re.search("prefix=(&|$)", request.target)
        return listing(("f", len(OLD))) if is_root else listing()
    answer = ranged(request, OLD)
    del answer.headers["ETag"]
    answer.chunk_bytes = 10_000
    return answer


def test_what_is_proven_is_read(node: Node, server: ScriptedS3) -> None:
    """[S-proven] In chunks, without an etag."""
    server.script = chunked_without_etag
    mounted = mount(node, server)
    assert (mounted / "f").read_bytes() == OLD
    node.umount(mounted)


@pytest.mark.parametrize("change", CHANGES, ids=NAMES)
def test_a_file_that_was_replaced_with_its_size_and_mtime(
    node: Node, tmp_path: Path, change: Change
) -> None:
    """[S-file-versions] [C-version-content] It is another inode at the next access, an open
    handle reads its own version or gets ESTALE, and a sync counts it as replaced."""
    source = tmp_path / "source"
    source.mkdir()
    write_file(source / "f", OLD)
    mounted = node.mount(f"file://{source}", "--sync-interval", "0")
    assert (mounted / "f").read_bytes() == OLD
    before = (mounted / "f").stat()
    change(source / "f")
    with (mounted / "f").open("rb") as file:
        assert file.read() == NEW
    after = (mounted / "f").stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, MTIME_NS)
    assert after.st_ino != before.st_ino
    node.umount(mounted)


def test_a_sync_counts_a_file_that_was_replaced_behind_its_mtime(
    node: Node, tmp_path: Path
) -> None:
    """[S-file-versions] Where names are never asked for again."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("f", "g"):
        write_file(source / name, OLD)
    mounted = node.mount(f"file://{source}", "--sync-interval=-1")
    assert (mounted / "f").read_bytes() == OLD
    write_file(source / "f", NEW)
    assert "1 replaced" in node.ok("sync", "-R", mounted)
    assert (mounted / "f").read_bytes() == NEW
    assert "0 added, 0 replaced, 0 gone" in node.ok("sync", "-R", mounted)
    (source / "g").chmod(0o600)
    assert "1 replaced" in node.ok("sync", "-R", mounted)
    node.umount(mounted)
