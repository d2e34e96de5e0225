"""Manifests of mounted buckets: built by the server's listings, equal to what the mount shows, and
refreshed by the events of the namespace."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cachefs.core import messages as m
from cachefs.core.errors import NotADirectory
from cachefs.core.manifest_format import NO_POSITION
from cachefs.trainers import manifest as manifests
from cachefs.trainers.listings import MountListings
from cachefs.trainers.manifest import Manifest
from cachefs.trainers.manifest_build import ManifestBuild
from cachefs.trainers.manifest_tables import TableMap
from cachefs.trainers.mount_session import MountSession
from tests.integration.conftest import Bucket, Node
from tests.integration.test_loads import kill_server
from tests.services.processes import wait_until
from tests.services.proxy import FaultProxy

NAMES = [f"train/{folder}/{number:02d}.jpg" for folder in ("cat", "dog") for number in range(40)]


@pytest.fixture
def train(node: Node, bucket: Bucket) -> Path:
    bucket.fill({name: name.encode() for name in NAMES} | {"other/x": b"x"})
    return node.mount(bucket.url, *bucket.options, "--sync-interval", "1h") / "train"


@pytest.fixture
def make(node: Node, train: Path) -> Callable[[], Manifest]:
    return lambda: Manifest(train, home=str(node.state))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[m.Message]:
    """The requests of all sessions of manifests."""
    made: list[m.Message] = []
    call, send = MountSession.call, MountSession.send

    def noted(
        session: MountSession, body: m.Message, answer: type, fd: int | None = None
    ) -> object:
        made.append(body)
        return call(session, body, answer, fd)

    def sent(session: MountSession, body: m.Message) -> int:
        made.append(body)
        return send(session, body)

    monkeypatch.setattr(MountSession, "call", noted)
    monkeypatch.setattr(MountSession, "send", sent)
    return made


def listed(manifest: Manifest) -> list[tuple[bytes, int, int]]:
    every = range(len(manifest))
    return [(manifest.relative(i), manifest.ino(i), manifest.size(i)) for i in every]


def through(mounted: Path, tmp_path: Path) -> list[tuple[bytes, int, int]]:
    """What the mount shows, by another way of listing."""
    ManifestBuild(MountListings(os.fsencode(mounted))).run().write(tmp_path / "t", b"", -1)
    tables = TableMap(tmp_path / "t")
    for suffix in ("inos", "names"):
        (tmp_path / f"t.{suffix}").unlink()
    folders = [tables.folder_path(tables.folder_of(i)) + b"/" for i in range(len(tables))]
    names = [(f + tables.name(i)).lstrip(b"/") for i, f in enumerate(folders)]
    return [*zip(names, tables.inos, tables.sizes, strict=True)]


def test_a_manifest_is_what_the_mount_shows(
    make: Callable[[], Manifest], train: Path, tmp_path: Path
) -> None:
    manifest = make()
    assert [*manifest] == [os.fsencode(train.parent / name) for name in NAMES]
    assert listed(manifest) == through(train, tmp_path)
    assert manifest.classes == ["cat", "dog"]
    info = os.stat(manifest.file(50))
    assert (info.st_ino, info.st_size) == (manifest.ino(50), manifest.size(50))
    assert any(manifest.namespace)


def test_a_refresh_lists_only_the_folders_that_changed(
    make: Callable[[], Manifest],
    calls: list[m.Message],
    node: Node,
    bucket: Bucket,
    train: Path,
    tmp_path: Path,
) -> None:
    first = make()
    calls.clear()
    assert listed(make()) == listed(first)
    assert not any(isinstance(call, m.ListDir) for call in calls)  # nothing changed

    bucket.put("train/dog/new.jpg", b"new one")
    bucket.put("train/fox/1.jpg", b"fox")
    bucket.delete("train/dog/00.jpg")
    node.ok("sync", "--recursive", train)
    calls.clear()
    second = make()
    assert listed(second) == through(train, tmp_path)
    assert second.classes == ["cat", "dog", "fox"]
    assert len(second) == len(NAMES) + 1
    cat = os.stat(train / "cat").st_ino
    asked = [call.ino for call in calls if isinstance(call, m.ListDir)]
    assert asked
    assert cat not in asked

    bucket.put("other/y", b"y")  # not below the manifest's folder
    node.ok("sync", "--recursive", train.parent)
    calls.clear()
    assert listed(make()) == listed(second)
    assert not any(isinstance(call, m.ListDir) for call in calls)


def test_a_refresh_compares_names_that_are_older_than_the_interval(
    node: Node, bucket: Bucket, tmp_path: Path, calls: list[m.Message]
) -> None:
    """[S-manifest] No other program has to list the folders first."""
    folders = 1 + 3 + 11
    more = {f"train/eel/{number:04d}/{n:02d}": b"x" for number in range(11) for n in range(100)}
    bucket.fill({**more, **{name: name.encode() for name in NAMES}})
    mnt = node.mount(bucket.url, *bucket.options, "--sync-interval", "4s") / "train"
    first = Manifest(mnt, home=str(node.state))
    assert len(first) == len(NAMES) + len(more)
    calls.clear()
    assert not first.refresh(), "they were compared within the interval"
    assert not any(isinstance(call, m.ListDir) for call in calls)

    bucket.put("train/dog/zz.jpg", b"new")
    bucket.put("train/eel/0003/zz", b"new")
    bucket.put("train/fox/1.jpg", b"fox")
    bucket.delete("train/eel/0007/50")
    names = {*NAMES, *more, "train/dog/zz.jpg", "train/eel/0003/zz", "train/fox/1.jpg"}
    names.remove("train/eel/0007/50")

    def is_current() -> bool:
        first.refresh()
        return [*first] == [os.fsencode(mnt.parent / name) for name in sorted(names)]

    wait_until(is_current, "the names are older than the interval")
    assert listed(first) == through(mnt, tmp_path)
    asked = {call.ino for call in calls if isinstance(call, m.ListDir)}
    assert len(asked) >= folders


def test_names_stay_where_the_origin_does_not_answer(
    node: Node, bucket: Bucket, proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    bucket.fill(dict.fromkeys(NAMES, b"x"))
    options = ("--sync-interval", "0s", "--origin-deadline", "2s")
    mnt = node.mount(bucket.url, *bucket.options, *options)
    node.allowed_log.append("")
    made = Manifest(mnt, home=str(node.state))
    proxy.offline()
    assert not made.refresh()
    assert len(made) == len(NAMES)
    assert "cannot be compared with the origin" in caplog.text


def test_a_manifest_survives_the_server(
    make: Callable[[], Manifest], calls: list[m.Message], node: Node, train: Path
) -> None:
    node.allowed_log += ["the connection to the server is lost"]
    first = make()
    calls.clear()
    kill_server(node, train.parent)
    assert listed(make()) == listed(first)
    assert not any(isinstance(call, m.ListDir) for call in calls)  # positions continue


def test_without_a_session_it_is_listed_through_the_mount(
    train: Path, tmp_path: Path, bucket: Bucket, node: Node
) -> None:
    """As by a user who has no record of the mount."""
    manifest = Manifest(train, home=str(tmp_path / "foreign"))
    assert [*manifest] == [os.fsencode(train.parent / name) for name in NAMES]
    assert listed(manifest) == through(train, tmp_path)
    assert manifest._tables.header.position == NO_POSITION
    assert not any(manifest.namespace)


def test_a_folder_that_does_not_exist_is_named(node: Node, train: Path) -> None:
    with pytest.raises(manifests.NotFound, match=f"no such directory: {train}/nothing$"):
        Manifest(train / "nothing", home=str(node.state))
    with pytest.raises(NotADirectory, match=f"not a directory: {train.parent / NAMES[0]}$"):
        Manifest(train.parent / NAMES[0], home=str(node.state))


def test_a_server_that_is_killed_during_the_listing_is_not_seen(
    make: Callable[[], Manifest], node: Node, train: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.allowed_log += ["the connection to the server is lost"]
    changed, killed = manifests._refreshed, []

    def killing(store: Any, root: bytes, session: Any) -> Any:
        if not killed:
            killed.append(kill_server(node, train.parent))
        return changed(store, root, session)

    monkeypatch.setattr(manifests, "_refreshed", killing)
    assert [*make()] == [os.fsencode(train.parent / name) for name in NAMES]
    assert killed
