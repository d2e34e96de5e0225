"""Manifests of plain folders: the files of a walk by name, mapped; what a refresh takes in."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import pickle
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from cachefs.core import messages as m
from cachefs.core.errors import BadConfig, CacheFSError, NotADirectory, NotFound, Stale
from cachefs.core.model import Inode, Kind, NamespaceId
from cachefs.trainers.listings import (
    AHEAD,
    MOST_AHEAD,
    FolderContents,
    FolderGone,
    FoundFile,
    FoundFolder,
    MountListings,
    ServerListings,
)
from cachefs.trainers.manifest import Manifest
from cachefs.trainers.manifest_build import ManifestBuild
from cachefs.trainers.manifest_store import mapped
from cachefs.trainers.manifest_tables import TableMap
from cachefs.trainers.mount_session import MountSession

SEEDS = range(20)


def walk(root: Path) -> list[tuple[bytes, int, int]]:
    """The files in the order of a manifest: path below the root, ino, size."""
    found = []
    for folder, names, files in os.walk(os.fsencode(root)):
        names.sort()
        for name in sorted(files):
            path = os.path.join(folder, name)
            info = os.lstat(path)
            found.append((os.path.relpath(path, os.fsencode(root)), info.st_ino, info.st_size))
    return found


def listed(manifest: Manifest) -> list[tuple[bytes, int, int]]:
    every = range(len(manifest))
    return [(manifest.relative(i), manifest.ino(i), manifest.size(i)) for i in every]


def test_a_manifest_has_every_file_in_the_order_of_a_walk_by_name(
    files: Path, home: str, manifest: Manifest
) -> None:
    (files / "a").mkdir()
    (files / "a" / "deep").mkdir()
    (files / "a" / "deep" / os.fsdecode(b"\xff\xfe")).write_bytes(b"x")
    (files / "a-file").write_bytes(b"yy")
    (files / "a" / "empty").touch()
    (files / "link").symlink_to("a-file")
    assert manifest.refresh()
    assert listed(manifest) == [one for one in walk(files) if one[0] != b"link"]
    assert next(iter(manifest)) == os.fsencode(files / "a-file")
    assert manifest.classes == ["a", "cat", "dog", "fox"]
    assert [manifest.label(i) for i in (0, 1, 2, 3)] == [-1, 0, 0, 1]


def test_an_index_out_of_range_names_the_manifest(files: Path, manifest: Manifest) -> None:
    for index in (25, -1):
        for ask in (manifest.file, manifest.relative, manifest.size, manifest.ino, manifest.label):
            with pytest.raises(IndexError, match=f"file {index} of {files}, .* has 25 files"):
                ask(index)


def test_a_url_is_refused(home: str) -> None:
    with pytest.raises(BadConfig, match=r"a URL: 'cachefs\+s3://bucket/train'; mount its source"):
        Manifest("cachefs+s3://bucket/train", home=home)


def test_an_empty_folder_has_a_manifest(
    tmp_path: Path, home: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be the mount point of what is not mounted: that is said."""
    (tmp_path / "empty").mkdir()
    manifest = Manifest(tmp_path / "empty", home=home)
    assert (len(manifest), [*manifest], manifest.classes) == (0, [], [])
    assert f"{tmp_path}/empty has no files, and no mount is there" in caplog.text


def test_the_identity_is_that_of_names_and_sizes(files: Path, home: str, tmp_path: Path) -> None:
    first = Manifest(files, home=home)
    os.rename(files, tmp_path / "moved")
    moved = Manifest(tmp_path / "moved", home=home)
    assert moved.identity == first.identity
    (tmp_path / "moved" / "cat" / "000.jpg").write_bytes(b"longer")
    assert moved.refresh()
    assert moved.identity != first.identity


def test_a_refresh_notices_a_file_of_another_class(files: Path, home: str) -> None:
    """Also where the list of names stays: the first of a folder moves to the folder before it."""
    for number, path in enumerate(sorted((files / "dog").iterdir())):
        path.rename(files / "dog" / f"z{number:03}")  # behind all cats
    manifest = Manifest(files, home=home)
    names = [name.rpartition(b"/")[2] for name in manifest]
    moved = min((files / "dog").iterdir())
    moved.rename(files / "cat" / moved.name)
    assert manifest.refresh()
    assert [name.rpartition(b"/")[2] for name in manifest] == names
    assert not manifest.refresh()


def test_another_process_maps_the_same_tables(manifest: Manifest, files: Path, home: str) -> None:
    copy = pickle.loads(pickle.dumps(manifest))
    assert listed(copy) == listed(manifest)
    (files / "cat" / "more").touch()
    later = Manifest(files, home=home)
    assert len(later) == 26
    again = pickle.loads(pickle.dumps(copy))  # the tables in use are not removed
    assert listed(again) == listed(manifest)


def test_unused_tables_are_removed(files: Path, home: str) -> None:
    for number in range(4):
        (files / f"new{number}").touch()
        Manifest(files, home=home)
    last = Manifest(files, home=home)
    assert len(last) == 29
    assert len([*Path(home).rglob("*.names")]) == len([*Path(home).rglob("*.inos")]) == 1


def test_damaged_tables_are_refused(manifest: Manifest) -> None:
    names = manifest._tables.stem.with_suffix(".names")
    names.write_bytes(names.read_bytes()[:-1])
    with pytest.raises(BadConfig, match="instead of"):
        mapped(manifest._tables.stem)


class Tree:
    """Folders in memory, with a count of listings."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.inos = iter(range(2, 1 << 30))
        self.folders: dict[bytes, dict[bytes, tuple[int, int]]] = {b"": {}}
        self.folder_inos = {b"": 1}
        self.listed: list[bytes] = []

    def change(self) -> int:
        """Changes one name; returns the ino of the folder with it."""
        folder = self.draw.choice([*self.folders])
        name = b"%d" % self.draw.randrange(12)
        below = (folder + b"/" if folder else b"") + name
        files = self.folders[folder]
        if below in self.folders:
            self.remove(below)
        elif files.pop(name, None) is None:
            if self.draw.random() < 0.4:
                self.folders[below], self.folder_inos[below] = {}, next(self.inos)
            else:
                files[name] = (next(self.inos), self.draw.randrange(100))
        return self.folder_inos[folder]

    def remove(self, folder: bytes) -> None:
        for path in [p for p in self.folders if p == folder or p.startswith(folder + b"/")]:
            del self.folders[path], self.folder_inos[path]

    def root_ino(self) -> int:
        return 1

    def expect(self, inos: Sequence[int]) -> None:
        assert len(set(inos)) == len(inos) <= 1 + AHEAD

    def contents(self, path: bytes, ino: int) -> FolderContents:
        assert self.folder_inos[path] == ino
        self.listed.append(path)
        prefix = path + b"/" if path else b""
        below = [p for p in self.folders if p and p.rpartition(b"/")[0] == path and p != path]
        return FolderContents(
            sorted(FoundFile(n, ino, size) for n, (ino, size) in self.folders[path].items()),
            sorted(FoundFolder(p[len(prefix) :], self.folder_inos[p]) for p in below),
        )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_refresh_equals_a_new_build_and_lists_only_what_changed(
    seed: int, tmp_path: Path
) -> None:
    tree = Tree(seed)
    for _ in range(60):
        tree.change()
    ManifestBuild(tree).run().write(tmp_path / "0", b"", 0)
    for step in range(1, 12):
        before = dict(tree.folder_inos)
        changed = {tree.change() for _ in range(tree.draw.randrange(4))}
        tree.listed.clear()
        build = ManifestBuild(tree, TableMap(tmp_path / f"{step - 1}"), frozenset(changed))
        build.run().write(tmp_path / f"{step}", b"", step)
        new = [path for path in tree.listed if tree.folder_inos[path] not in changed]
        assert all(before.get(path) != tree.folder_inos[path] for path in new)
        ManifestBuild(tree).run().write(tmp_path / f"whole{step}", b"", step)
        for suffix in (".inos", ".names"):
            name = f"{step}{suffix}"
            assert (tmp_path / name).read_bytes() == (tmp_path / f"whole{name}").read_bytes()


class PagedSession:
    """A session with a server that lists a tree in pages of three names."""

    namespace = NamespaceId(bytes(16))

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._paths = {ino: path for path, ino in tree.folder_inos.items()}
        self._waiting: dict[int, m.ListDir] = {}
        self._ids = itertools.count(1)
        self.first_pages: list[int] = []
        self.most_waiting = 0

    def resolve(self) -> Inode:
        return Inode(1, Kind.DIRECTORY)

    def send(self, body: m.ListDir) -> int:
        id = next(self._ids)
        self._waiting[id] = body
        self.first_pages += [body.ino] if not body.after else []
        self.most_waiting = max(self.most_waiting, len(self._waiting))
        return id

    def reply_to(self, id: int, answer: type[m.Listing]) -> m.Listing:
        body = self._waiting.pop(id)
        found = self._tree.contents(self._paths[body.ino], body.ino)
        inodes = [(n, Inode(ino, Kind.FILE, size)) for n, ino, size in found.files]
        inodes += [(n + b"/", Inode(ino, Kind.DIRECTORY)) for n, ino in found.folders]
        left = sorted(one for one in inodes if one[0] > body.after)
        entries = [
            m.Dentry(key.rstrip(b"/"), msgspec.Raw(msgspec.msgpack.encode(inode)))
            for key, inode in left[:3]
        ]
        return answer(entries, left[2][0] if len(left) > 3 else b"", 1.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_listings_ahead_find_the_same_and_request_each_folder_once(
    seed: int, tmp_path: Path
) -> None:
    tree = Tree(seed)
    for _ in range(120):
        tree.change()
    session = PagedSession(tree)
    ManifestBuild(ServerListings(cast(MountSession, session))).run().write(tmp_path / "a", b"", 0)
    ManifestBuild(tree).run().write(tmp_path / "b", b"", 0)
    for suffix in (".inos", ".names"):
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()
    assert sorted(session.first_pages) == sorted(tree.folder_inos.values())
    assert session.most_waiting <= MOST_AHEAD + 1


def test_folders_are_listed_ahead() -> None:
    tree = Tree(0)
    for number in range(3 * AHEAD):
        tree.folders[b"%d" % number] = {b"file": (100 + number, 1)}
        tree.folder_inos[b"%d" % number] = 200 + number
    session = PagedSession(tree)
    ManifestBuild(ServerListings(cast(MountSession, session))).run()
    assert session.most_waiting == 1 + AHEAD


def test_listings_through_a_mount_are_sorted(files: Path) -> None:
    found = MountListings(os.fsencode(files)).contents(b"cat", 0)
    assert found.files == sorted(found.files)
    assert found.folders == []


class Vanishing(Tree):
    """A tree of which some folders are removed once those above them were listed."""

    def __init__(self, seed: int, gone: set[bytes]) -> None:
        super().__init__(seed)
        self.gone = gone

    def contents(self, path: bytes, ino: int) -> FolderContents:
        if path in self.gone:
            raise FolderGone("no such directory")
        return super().contents(path, ino)


@pytest.mark.parametrize("seed", SEEDS)
def test_folders_that_vanish_during_a_build_are_left_out(seed: int, tmp_path: Path) -> None:
    tree = Vanishing(seed, set())
    for _ in range(120):
        tree.change()
    below = [path for path in sorted(tree.folders) if path]
    gone = {*tree.draw.sample(below, min(3, len(below)))}
    tree.gone = gone
    ManifestBuild(tree).run().write(tmp_path / "a", b"", 0)
    tree.gone = set()
    for folder in gone & {*tree.folders}:
        tree.remove(folder)
    ManifestBuild(tree).run().write(tmp_path / "b", b"", 0)
    for suffix in (".inos", ".names"):
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()
    tree.gone = {b""}
    with pytest.raises(NotFound):
        ManifestBuild(tree).run()


@pytest.mark.parametrize("error", [NotFound, NotADirectory, Stale])
def test_a_folder_of_which_the_server_knows_nothing_any_more_is_gone(
    error: type[CacheFSError],
) -> None:
    class Session(PagedSession):
        def reply_to(self, id: int, answer: type[m.Listing]) -> m.Listing:
            raise error("it was removed")

    listings = ServerListings(cast(MountSession, Session(Tree(0))))
    with pytest.raises(FolderGone, match="it was removed"):
        listings.contents(b"train", 1)


def test_folders_and_files_that_vanish_from_a_mount_are_left_out(
    files: Path, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scandir = os.scandir

    def racing(path: bytes) -> Any:
        """A file is removed after its folder was read, and a folder before."""
        if path == os.fsencode(files / "cat"):
            os.rename(path, files.parent / "elsewhere")
        entries = scandir(path)
        if path == os.fsencode(files / "dog"):
            (files / "dog" / "001.jpg").unlink()
        return entries

    monkeypatch.setattr(os, "scandir", racing)
    manifest = Manifest(files, home=home)
    monkeypatch.undo()
    assert listed(manifest) == walk(files)
    assert manifest.classes == ["dog", "fox"]


class _Found:
    """What `os.scandir` finds: a file, whose attributes cannot be read where there is an error."""

    def __init__(self, name: bytes, error: int = 0) -> None:
        self.name = name
        self._error = error

    def is_dir(self, *, follow_symlinks: bool) -> bool:
        return False

    def is_file(self, *, follow_symlinks: bool) -> bool:
        return True

    def inode(self) -> int:
        return 7

    def stat(self, *, follow_symlinks: bool) -> os.stat_result:
        if self._error:
            raise OSError(self._error, os.strerror(self._error))
        return os.stat_result((0,) * 10)


def test_a_file_that_was_replaced_in_a_mount_does_not_leave_out_its_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FUSE says ESTALE of it, not ENOENT."""
    entries = [_Found(b"a", errno.ESTALE), _Found(b"b")]
    monkeypatch.setattr(os, "scandir", lambda path: contextlib.nullcontext(entries))
    assert MountListings(b"/m").contents(b"d", 1).files == [FoundFile(b"b", 7, 0)]
    entries[0] = _Found(b"a", errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        MountListings(b"/m").contents(b"d", 1)


def test_the_identity_says_in_which_folder_a_file_is(files: Path, home: str) -> None:
    """Also where the list of names stays: the first of a folder moves to the folder before it."""
    for path in sorted((files / "dog").iterdir()):
        path.rename(files / "dog" / f"z{path.name}")  # behind all cats
    before = Manifest(files, home=home)
    moved = min((files / "dog").iterdir())
    moved.rename(files / "cat" / moved.name)
    after = Manifest(files, home=home)
    assert after.identity != before.identity
    assert after.former_identity == before.former_identity
