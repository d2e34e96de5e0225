"""What a source on HDFS shows and reads, beyond what every connector must do."""

from __future__ import annotations

import concurrent.futures
import pwd
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from cachefs.core.errors import AccessDenied, BadConfig, NotFound, Stale, Unavailable, Unreachable
from cachefs.core.model import Fingerprint, Kind, UfsSpec
from connectors.compose import open_connector
from connectors.meter import Meter
from tests.hdfs.conftest import Source
from tests.services.processes import wait_until

KNOWN_USER = pwd.getpwuid(1).pw_name  # a user and a group of every machine
MANY = 2500


def names(source: Source, path: bytes = b"") -> set[bytes]:
    return {e.name for page in source.connector.list_dir(path) for e in page.entries}


def test_owner_group_and_mode(source: Source) -> None:
    source.write("f", b"1")
    path = f"{source.root}/f"
    source.client.set_permission(path, 0o1640)
    source.client.set_owner(path, KNOWN_USER, "root")
    found = source.connector.stat(b"f")
    assert (found.mode & 0o777, found.uid, found.gid) == (0o640, 1, 0)
    assert [found] == [e for page in source.connector.list_dir(b"") for e in page.entries]
    source.client.set_owner(path, "nobody-here", "no-group-here")
    found = source.connector.stat(b"f")
    assert (found.uid, found.gid) == (-1, -1)
    source.client.set_permission(source.root, 0o711)
    assert source.connector.stat(b"").mode == 0o711


def test_a_file_is_no_directory(source: Source) -> None:
    source.write("d/f", b"1")
    with pytest.raises(NotFound):
        names(source, b"d/f")
    connector = open_connector(UfsSpec(f"{source.spec.url}/d/f"), deadline_s=5, meter=Meter())
    with pytest.raises(NotFound, match="not a directory"):
        connector.check()
    connector.close()


@pytest.mark.parametrize("path", [b"a:b", b"\xff", b"d/../f", b"d//f"])
def test_names_that_hdfs_does_not_have(source: Source, path: bytes) -> None:
    for act in (source.connector.stat, source.connector.list_dir):
        with pytest.raises(NotFound):
            list(act(path))  # type: ignore[call-overload]


def test_a_directory_of_many_names(source: Source) -> None:
    wanted = {f"ä-{number:05}".encode() for number in range(MANY)} | {b"a", "ü".encode()}
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda name: source.write(name.decode(), b""), wanted))
    pages = list(source.connector.list_dir(b""))
    found = [entry.name for page in pages for entry in page.entries]
    assert (len(found), set(found)) == (len(wanted), wanted)
    assert max(len(page.entries) for page in pages) <= 1000


def test_a_file_that_is_being_written_is_not_read(new_source: Callable[..., Source]) -> None:
    from hdfs_native import WriteOptions

    source = new_source(deadline_s=0.5)
    writer = source.client.create(f"{source.root}/f", WriteOptions())
    writer.write(b"a" * 5000)
    writer.hsync()
    version = source.connector.stat(b"f").fingerprint
    assert version.size == 5000
    for read in (
        lambda: source.connector.read_all(b"f", version),
        lambda: source.connector.read(b"f", 0, 5000, version),
    ):
        with pytest.raises(Unavailable, match="0 of 5000 bytes"):
            read()
    writer.close()
    with pytest.raises(Stale):
        source.connector.read_all(b"f", version)
    version = source.connector.stat(b"f").fingerprint
    assert source.connector.read_all(b"f", version) == b"a" * 5000


def test_an_open_body_stays_at_its_version(source: Source) -> None:
    old, new = b"o" * (3 << 20), b"n" * (3 << 20)
    source.write("f", old)
    version = source.connector.stat(b"f").fingerprint
    body = iter(source.connector.read(b"f", 0, len(old), version))
    data = bytes(next(body))
    source.write("f", new)
    try:
        data += b"".join(map(bytes, body))
    except (Unavailable, Unreachable):  # the blocks of the old version may be gone
        pass
    assert old.startswith(data)


def test_the_same_length_and_mtime_is_the_same_version(source: Source) -> None:
    """[C-version-time]"""
    source.write("f", b"old")
    version = source.connector.stat(b"f").fingerprint
    source.write("f", b"NEW")
    mtime_ms = version.mtime_ns // 10**6
    source.client.set_times(f"{source.root}/f", mtime_ms, mtime_ms)
    assert (
        source.connector.stat(b"f").fingerprint
        == version
        == Fingerprint(Kind.FILE, 3, version.mtime_ns)
    )
    source.client.set_times(f"{source.root}/f", mtime_ms + 1, mtime_ms)
    with pytest.raises(Stale):
        source.connector.read_all(b"f", version)


def test_no_thread_is_left_after_close(source: Source) -> None:
    source.write("f", b"1")
    connector = open_connector(source.spec, deadline_s=5, meter=Meter())
    before = {*threading.enumerate()}
    connector.check()
    (thread,) = {*threading.enumerate()} - before
    connector.close()
    wait_until(lambda: not thread.is_alive(), "the thread has ended")


def test_two_users_in_one_process_are_refused(source: Source) -> None:
    with pytest.raises(BadConfig, match="alice") as caught:
        open_connector(UfsSpec(source.spec.url, {"user": "alice"}), deadline_s=5, meter=Meter())
    assert "option user" in caught.value.remedy


READ_AS = """
import sys
from cachefs.core.errors import CacheFSError
from cachefs.core.model import UfsSpec
from connectors.compose import open_connector
from connectors.meter import Meter
connector = open_connector(UfsSpec(sys.argv[1], {"user": sys.argv[2]}), deadline_s=5, meter=Meter())
try:
    connector.check()
    print(bytes(connector.read_all(b"f", connector.stat(b"f").fingerprint)).decode())
except CacheFSError as error:
    print(error.code, error.one_line())
"""


def read_as(user: str, source: Source) -> str:
    """What another process reads as another user."""
    command = [sys.executable, "-I", "-c", READ_AS, source.spec.url, user]
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout.strip()


def test_the_user_of_a_source(source: Source) -> None:
    source.write("f", b"for the team")
    source.client.set_owner(source.root, "alice", "team")
    source.client.set_permission(source.root, 0o750)
    assert read_as("bob", source) == "for the team"  # of the team
    refused = read_as("eve", source)
    assert refused.startswith(AccessDenied.code)
    assert "user=eve" in refused
    assert "option user" in refused
