"""What only a directory of a file system can do: links, special files, permissions, changes."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cachefs.core.errors import (
    AccessDenied,
    BadBody,
    CacheFSError,
    NotFound,
    Stale,
    Unavailable,
    Unreachable,
)
from cachefs.core.model import Fingerprint, Kind
from connectors.base import Entry
from connectors.bounds import MAX_TIME_NS
from connectors.file import connector as file
from connectors.file.connector import FileConnector

BIG = bytes(range(256)) * (3 << 12)  # 3 MiB


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "d").mkdir(parents=True)
    (root / "d/f").write_bytes(b"inside")
    (tmp_path / "outside").write_bytes(b"outside")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/f").write_bytes(b"outside")
    return root


def listed(source: FileConnector, path: bytes = b"") -> dict[bytes, Entry]:
    return {entry.name: entry for page in source.list_dir(path) for entry in page.entries}


def test_a_link_is_a_link(root: Path) -> None:
    os.symlink("../outside", root / "link")
    os.symlink("nothing", root / "broken")
    source = FileConnector(str(root))
    assert source.stat(b"link").target == b"../outside"
    assert source.stat(b"link").fingerprint.kind is Kind.SYMLINK
    assert listed(source)[b"broken"].target == b"nothing"
    with pytest.raises(Stale):
        source.read(b"link", 0, 7, Fingerprint(Kind.FILE, 7))


@pytest.mark.parametrize("target", ["../elsewhere", "/", "d"])
def test_a_link_is_never_followed(root: Path, target: str) -> None:
    os.symlink(target, root / "way")
    source = FileConnector(str(root))
    for path in (b"way/f", b"way/etc/passwd", b"way/.."):
        with pytest.raises(NotFound):
            source.stat(path)
        with pytest.raises(NotFound):
            source.read(path, 0, 0, Fingerprint(Kind.FILE))
    with pytest.raises(NotFound):
        list(source.list_dir(b"way"))


def test_the_root_may_be_a_link(root: Path, tmp_path: Path) -> None:
    os.symlink("root", tmp_path / "alias")
    source = FileConnector(str(tmp_path / "alias"))
    source.check()
    assert listed(source).keys() == {b"d"}


def test_special_files_are_counted(root: Path) -> None:
    os.mkfifo(root / "pipe")
    source = FileConnector(str(root))
    pages = list(source.list_dir(b""))
    assert sum(page.hidden for page in pages) == 1
    assert b"pipe" not in {e.name for page in pages for e in page.entries}
    with pytest.raises(NotFound):
        source.stat(b"pipe")
    with pytest.raises(Stale):
        source.read(b"pipe", 0, 0, Fingerprint(Kind.FILE))


def test_attributes_are_the_origins(root: Path) -> None:
    os.chmod(root / "d/f", 0o640)
    os.utime(root / "d/f", ns=(1, 1_700_000_000_123_456_789))
    entry = FileConnector(str(root)).stat(b"d/f")
    found = (root / "d/f").stat()
    assert (entry.mode, entry.uid, entry.gid) == (0o640, os.getuid(), os.getgid())
    etag = f"{found.st_ino:x}-{found.st_ctime_ns:x}"
    assert entry.fingerprint == Fingerprint(Kind.FILE, 6, 1_700_000_000_123_456_789, etag)


def test_names_are_bytes(root: Path) -> None:
    name = b"\xff\xfe\n name"
    with open(os.path.join(os.fsencode(root), name), "wb") as made:
        made.write(b"x")
    source = FileConnector(str(root))
    assert listed(source)[name] == source.stat(name)


def test_a_root_that_is_missing_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"")
    for path in (tmp_path / "nothing", tmp_path / "f"):
        with pytest.raises(NotFound) as caught:
            FileConnector(str(path)).check()
        assert caught.value.path == str(path)


@pytest.mark.parametrize("change", ["append", "truncate", "rewrite"])
def test_a_change_while_reading_is_noticed_before_its_bytes(root: Path, change: str) -> None:
    where = root / "big"
    where.write_bytes(BIG)
    os.utime(where, (1, 1))
    source = FileConnector(str(root))
    body = source.read(b"big", 0, len(BIG), source.stat(b"big").fingerprint)
    chunks = iter(body)
    assert bytes(next(chunks)) == BIG[: 1 << 20]
    if change == "append":
        with where.open("ab") as again:
            again.write(b"more")
    elif change == "truncate":
        os.truncate(where, 10)
    else:
        with where.open("r+b") as again:
            again.write(b"other")
    with pytest.raises(Stale):
        next(chunks)


def test_a_file_replaced_by_rename_is_noticed_while_it_is_read(root: Path) -> None:
    """The file that is still open lost its name, which moves its ctime as a change of its bytes
    does: nothing tells the two apart."""
    (root / "big").write_bytes(BIG)
    source = FileConnector(str(root))
    chunks = iter(source.read(b"big", 0, len(BIG), source.stat(b"big").fingerprint))
    assert bytes(next(chunks)) == BIG[: 1 << 20]
    (root / "new").write_bytes(b"new")
    os.rename(root / "new", root / "big")
    with pytest.raises(Stale):
        next(chunks)


def test_descriptors_are_given_back(root: Path) -> None:
    for number in range(5):
        (root / f"d/{number}").mkdir()
        (root / f"d/{number}/f").write_bytes(BIG)
    source = FileConnector(str(root))
    before = len(os.listdir("/proc/self/fd"))
    version = source.stat(b"d/1/f").fingerprint
    list(source.list_dir(b"d"))
    next(iter(source.read(b"d/1/f", 0, len(BIG), version)))
    source.read(b"d/1/f", 0, len(BIG), version)
    with pytest.raises(Stale):
        source.read(b"d/1/f", 0, 1, Fingerprint(Kind.FILE, 1))
    with pytest.raises(NotFound):
        source.stat(b"d/nothing/f")
    assert len(os.listdir("/proc/self/fd")) <= before  # what earlier tests left may go meanwhile


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.EACCES, AccessDenied),
        (errno.ENOENT, NotFound),
        (errno.ESTALE, Unavailable),
        (errno.EIO, Unavailable),
        (errno.ETIMEDOUT, Unreachable),
        (errno.ENOTCONN, Unreachable),
        (errno.EMFILE, Unreachable),
    ],
)
def test_errors_of_the_system(number: int, expected: type[Exception]) -> None:
    found = file.classify(OSError(number, "x"), "/data/f")
    assert type(found) is expected
    assert found.path == "/data/f"


def test_a_body_that_ends_early(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = FileConnector(str(root))
    body = source.read(b"d/f", 0, 6, source.stat(b"d/f").fingerprint)
    monkeypatch.setattr(os, "preadv", lambda *_args: 0)
    with pytest.raises(BadBody):
        list(body)


def refuse(monkeypatch: pytest.MonkeyPatch, number: int, *refused: bytes) -> None:
    """Attributes of these names cannot be had."""
    stat, open_ = os.stat, os.open

    def answer(path: Any, **options: Any) -> os.stat_result:
        if path in refused:
            raise OSError(number, os.strerror(number))
        return stat(path, **options)

    def opened(path: Any, flags: int, mode: int = 0o777, **options: Any) -> int:
        if path in refused and number == errno.ENOTCONN:
            raise OSError(number, os.strerror(number))
        return open_(path, flags, mode, **options)

    monkeypatch.setattr(os, "stat", answer)
    monkeypatch.setattr(os, "open", opened)


@pytest.mark.parametrize("number", [errno.ENOTCONN, errno.EACCES])
def test_a_name_without_attributes_is_hidden_and_counted(
    root: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A dead mount in the source does not take the names beside it away."""
    (root / "dead").mkdir()
    (root / "file").write_bytes(b"x")
    refuse(monkeypatch, number, b"dead")
    source = FileConnector(str(root))
    pages = list(source.list_dir(b""))
    found = {e.name for page in pages for e in page.entries}
    assert b"file" in found
    assert b"dead" not in found
    assert sum(page.hidden for page in pages) == 1


@pytest.mark.parametrize(
    ("number", "refused"), [(errno.EACCES, (b"file", b".")), (errno.EIO, (b"file",))]
)
def test_a_directory_whose_names_have_no_attributes_is_not_empty(
    root: Path, monkeypatch: pytest.MonkeyPatch, number: int, refused: tuple[bytes, ...]
) -> None:
    """It may not be searched, or its disk fails: its names are not taken for gone."""
    (root / "file").write_bytes(b"x")
    refuse(monkeypatch, number, *refused)
    with pytest.raises(CacheFSError):
        list(FileConnector(str(root)).list_dir(b""))


def test_times_of_a_file_system_that_cannot_be() -> None:
    """As a server of NFS or FUSE may send them."""
    odd = SimpleNamespace(
        st_mode=stat.S_IFDIR | 0o755, st_ctime_ns=2**62 * 10**9, st_uid=0, st_gid=0
    )
    found: Any = odd
    fingerprint = Fingerprint(Kind.DIRECTORY)
    assert file._entry_of(b"d", fingerprint, found).names_changed_ns == MAX_TIME_NS
