"""A mount of a directory below the namespace's root: the kernel sees it as its own root."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from cachefs.client.connection import Connection
from cachefs.core import messages as m
from cachefs.core.errors import NotFound, Stale
from cachefs.core.model import ROOT_INO, Inode, Kind, UfsSpec
from cachefs.fuse.attributes import Defaults
from cachefs.fuse.directories import Entry
from cachefs.fuse.root import Root
from cachefs.fuse.server_calls import MUST_WAIT
from cachefs.fuse.vfs import Vfs
from tests.unit.fuse.fake_node import NAMESPACE, Answer, FakeNode

LIMIT_S = 20.0


def test_only_the_mounted_directory_has_another_number() -> None:
    root = Root(Inode(7, Kind.DIRECTORY))
    assert (root.real(ROOT_INO), root.real(8)) == (7, 8)
    assert root.shown(Inode(7, Kind.DIRECTORY, mtime_ns=5)) == Inode(
        ROOT_INO, Kind.DIRECTORY, mtime_ns=5
    )
    assert root.shown(Inode(8, Kind.FILE)).ino == 8
    entries = [(ROOT_INO, b"above"), (7, b"in it"), (9, b"below")]
    assert root.below(entries) == [(ROOT_INO, b"in it"), (9, b"below")]


def test_the_namespaces_root_is_itself() -> None:
    root = Root(Inode(ROOT_INO, Kind.DIRECTORY))
    assert root.real(ROOT_INO) == ROOT_INO
    assert root.below([(ROOT_INO, b"x")]) == [(ROOT_INO, b"x")]


def test_what_changes_at_the_mounted_path() -> None:
    root = Root(Inode(7, Kind.DIRECTORY), b"data/sub")
    assert root.may_have_moved([(3, b"other"), (3, b"sub")])
    assert root.may_have_moved([(ROOT_INO, b"data")])
    assert not root.may_have_moved([(7, b"sub"), (9, b"file")]), "these are below it"
    assert not Root(Inode(ROOT_INO, Kind.DIRECTORY)).may_have_moved([(3, b"sub")])


def test_a_file_system_of_a_directory(tmp_path: Path) -> None:
    mounted = [0]

    def attach_there(_: m.Message) -> Answer:
        if mounted[0] not in node.inodes:
            raise NotFound("no such directory in the cluster")
        return m.Attached(NAMESPACE, node.inodes[mounted[0]]), None

    async def main() -> None:
        with trio.fail_after(LIMIT_S):
            hello = m.Hello(role="fuse", pid=os.getpid())
            conn = await Connection.connect(str(tmp_path / "node.sock"), hello)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(conn.run)
                attach = m.Attach(UfsSpec("cachefs://m:1/d"))
                vfs = Vfs(conn, await conn.attach(attach), Defaults(0, 0), attach=attach)
                try:
                    await _look_around(vfs, node)
                    node.remove("d/sub")
                    node.remove("d")
                    with pytest.raises(Stale):
                        await vfs.getattr(ROOT_INO)
                    mounted[0] = node.add_dir("e")
                    node.add_dir("e/new")
                    await _look_again(vfs, node)
                    nursery.start_soon(vfs.follow_root)
                    assert (await vfs.lookup(ROOT_INO, b"new")).valid_for_s
                    mounted[0] = node.add_dir("f")
                    vfs.on_event(m.Invalidate(NAMESPACE, 2, [(ROOT_INO, b"d")]))
                    while vfs.lookup_nowait(ROOT_INO, b"new") is not MUST_WAIT:
                        await trio.lowlevel.checkpoint()
                    assert (await vfs.lookup(ROOT_INO, b"new")).inode is None
                finally:
                    vfs.close()
                nursery.cancel_scope.cancel()

    with FakeNode() as node:
        mounted[0] = node.add_dir("d")
        node.add_dir("d/sub")
        node.add_file("d/sub/file", b"bytes")
        node.scripts[m.Attach] = attach_there
        node.listen(tmp_path / "node.sock")
        trio.run(main)


async def _look_around(vfs: Vfs, node: FakeNode) -> None:
    directory = node.find("d")
    shown = Inode(ROOT_INO, Kind.DIRECTORY, nonce=directory * 7919)
    assert (await vfs.getattr(ROOT_INO)).inode == shown
    sub = (await vfs.lookup(ROOT_INO, b"sub")).inode
    assert sub is not None
    assert sub.ino == node.find("d/sub")
    listing = [(entry.name, entry.inode.ino) for entry in await _list(vfs, ROOT_INO)]
    assert listing == [(b".", ROOT_INO), (b"..", ROOT_INO), (b"sub", sub.ino)]
    dots = {entry.name: entry.inode.ino for entry in await _list(vfs, sub.ino)}
    assert dots[b".."] == ROOT_INO
    told: list[tuple[int, bytes]] = []
    vfs.on_invalidated = lambda entries, _: told.extend(entries)
    vfs.on_event(m.Invalidate(NAMESPACE, 1, [(ROOT_INO, b"sub"), (directory, b"sub")]))
    assert told == [(ROOT_INO, b"sub")], "what changed above the mount is not the mount's"
    assert vfs.lookup_nowait(ROOT_INO, b"sub") is MUST_WAIT


async def _look_again(vfs: Vfs, node: FakeNode) -> None:
    """Another directory is at the mounted path now."""
    shown = Inode(ROOT_INO, Kind.DIRECTORY, nonce=node.find("e") * 7919)
    assert (await vfs.getattr(ROOT_INO)).inode == shown
    assert [entry.name for entry in await _list(vfs, ROOT_INO)] == [b".", b"..", b"new"]


async def _list(vfs: Vfs, ino: int) -> list[Entry]:
    fh = vfs.opendir(ino)
    try:
        return list(await vfs.readdir(fh, 0))
    finally:
        vfs.releasedir(fh)
