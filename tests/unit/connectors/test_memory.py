"""The fakes: scripts, and trees that exist only when asked for."""

from __future__ import annotations

import pytest

from cachefs.core.errors import NotFound, Stale
from cachefs.core.model import Fingerprint, Kind
from tests.services.memory import MemoryConnector, SyntheticConnector


def names(pages: object) -> list[bytes]:
    return [entry.name for page in pages for entry in page.entries]  # type: ignore[attr-defined]


def test_a_directory_comes_and_goes_with_its_files() -> None:
    memory = MemoryConnector({b"a/b/c": b"1"})
    memory.put(b"a", b"hidden")
    assert [page.hidden for page in memory.list_dir(b"")] == [1]
    memory.delete(b"a/b/c")
    assert memory.stat(b"a").fingerprint.kind is Kind.FILE
    memory.mkdir(b"kept/empty")
    memory.put(b"kept/empty/f", b"")
    memory.delete(b"kept/empty/f")
    assert names(memory.list_dir(b"kept")) == [b"empty"]
    memory.delete(b"kept/empty")
    assert names(memory.list_dir(b"")) == [b"a"]
    with pytest.raises(KeyError):
        memory.delete(b"kept")


def test_links_and_owners() -> None:
    memory = MemoryConnector(posix=True)
    memory.symlink(b"d/link", b"../x")
    memory.put(b"d/f", b"1", mode=0o600, uid=7, gid=8)
    link, file = memory.stat(b"d/link"), memory.stat(b"d/f")
    assert (link.target, link.fingerprint.kind, link.fingerprint.size) == (b"../x", Kind.SYMLINK, 4)
    assert (file.mode, file.uid, file.gid) == (0o600, 7, 8)


def test_a_synthetic_tree_is_consistent() -> None:
    tree = SyntheticConnector(directories=3, files_per_directory=1200, file_bytes=100)
    assert names(tree.list_dir(b"")) == [b"d000000", b"d000001", b"d000002"]
    assert names(tree.list_dir(b"d000002")) == [b"f%06d" % number for number in range(1200)]
    assert names(tree.list_dir(b"d000003")) == []
    version = tree.stat(b"d000001/f000007").fingerprint
    assert b"".join(tree.read(b"d000001/f000007", 3, 9, version)) == b"0001/f000"
    for path in (b"d000003", b"d000001/f001200", b"x", b"d1/f1", b"d000001/f000001/x"):
        with pytest.raises(NotFound):
            tree.stat(path)
    with pytest.raises(Stale):
        tree.read(b"d000001/f000007", 0, 1, Fingerprint(Kind.FILE, 1))


def test_a_directory_of_a_million_starts_at_once() -> None:
    tree = SyntheticConnector(directories=1, files_per_directory=1_000_000)
    assert len(next(tree.list_dir(b"d000000")).entries) == 1000
    assert tree.stat(b"d000000/f999999").fingerprint.size == 110 << 10
