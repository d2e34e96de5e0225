"""A store that is put back to an earlier state under readers: inode numbers that the lost state had
given are another file's then, and nobody reads another file's bytes.

Real processes by the real command line, on every transport, in a cluster and on a node alone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import time
from pathlib import Path

import msgspec
import pytest

from cachefs.client.http import HttpClient
from cachefs.core import cluster as c
from cachefs.core import messages as m
from master.state.numbers import first_of_start
from master.state.records import META_KEY, encode
from master.store.base import Table
from master.store.lmdb_store import LmdbStore
from master.store.snapshot import Names
from tests.conformance.transports import OPTIONS, PYFUSE3, TRANSPORTS
from tests.integration.conftest import Node
from tests.integration.dataset import body
from tests.services.cluster import Cluster
from tests.services.processes import is_running, wait_until

MIB = 1 << 20
AHEAD_S = 3600
BIG = 12 * MIB  # is not whole when it is opened
SMALL = 300_000
FILES = {"big": (3, BIG), "small": (6, SMALL)}  # how many, of how many bytes


@pytest.fixture(params=TRANSPORTS)
def transport_options(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return OPTIONS[request.param]


class Tree:
    """Two directories of files of two sizes, `lost` and `other`. The files of one size differ."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("lost", "other"):
            (root / name).mkdir(parents=True)

    def fill(self, directory: str) -> None:
        for kind, (count, size) in FILES.items():
            for number in range(count):
                data = body(len(directory) * 100 + number, size)
                (self.root / directory / f"{kind}{number}").write_bytes(data)

    def names(self, directory: str) -> list[str]:
        return [f"{directory}/{name}" for name in sorted(os.listdir(self.root / directory))]

    def data(self, name: str) -> bytes:
        return (self.root / name).read_bytes()


def read(path: Path) -> bytes | int:
    """The bytes of a file, or the errno of trying."""
    try:
        return path.read_bytes()
    except OSError as err:
        return err.errno or -1


def read_open(fd: int, size: int) -> tuple[bytes, int]:
    """What a file that is open gives from its start on, and the errno that ended that (0: none)."""
    found = b""
    while len(found) < size:
        try:
            found += os.pread(fd, size - len(found), len(found))
        except OSError as err:
            return found, err.errno or -1
    return found, 0


def check_names(tree: Tree, mounted: Path, directory: str) -> None:
    """Each name gives its own bytes or ESTALE, and its own bytes soon."""
    for name in tree.names(directory):
        right = tree.data(name)
        found = read(mounted / name)
        assert found in (right, errno.ESTALE), f"{name}: other bytes, or {found!r:.40}"
        wait_until(lambda name=name, right=right: read(mounted / name) == right, name)  # type: ignore[misc]


def check_open(tree: Tree, fds: dict[str, int], allowed: set[int]) -> None:
    for name, fd in fds.items():
        right = tree.data(name)
        found, error = read_open(fd, len(right))
        assert error in allowed, f"{name}, open: {error}"
        assert found == right[: len(found)], f"{name}, open: another file's bytes"


def open_some(tree: Tree, mounted: Path) -> dict[str, int]:
    """Files of the state that will be lost, open: a large one of which little is cached, a large
    and a small one that are whole."""
    fds = {}
    for name in ("lost/big0", "lost/big1", "lost/small0"):
        fds[name] = os.open(mounted / name, os.O_RDONLY)
        size = MIB if name == "lost/big0" else BIG
        assert os.pread(fds[name], size, 0) == tree.data(name)[:size]
    return fds


def close_all(fds: dict[str, int]) -> None:
    for fd in fds.values():
        with contextlib.suppress(OSError):  # of a former file, where `allowed` has EIO
            os.close(fd)


def give_again(store: Path) -> None:
    """Has each start of this state give the same inode numbers: its clock was an hour ahead."""
    names = LmdbStore(store.parent)
    with names.snapshot() as reader:
        meta = Names(reader).meta()
    assert meta is not None
    ahead = first_of_start(meta.next_ino, time.time() + AHEAD_S)
    value = encode(msgspec.structs.replace(meta, next_ino=ahead))
    names.write(lambda writer: writer.put(Table.META, [(META_KEY, value)])).result()
    names.close()


@pytest.fixture(params=[False, True], ids=["numbers left out", "numbers given again"])
def again(request: pytest.FixtureRequest) -> bool:
    flag: bool = request.param
    return flag


@pytest.fixture
def allowed(again: bool, transport_options: tuple[str, ...]) -> set[int]:
    """What reading an open file may end with. `pyfuse3` has one nodeid for an inode number: the
    kernel gives EIO for what is open of a former one."""
    lost = {errno.EIO} if again and transport_options == OPTIONS[PYFUSE3] else set[int]()
    return {0, errno.ESTALE} | lost


# ---- a cluster -----------------------------------------------------------------------------------


def number_all(cluster: Cluster, tree: Tree, directory: str) -> set[int]:
    """Has the master look names up, one by one: their inode numbers."""
    inos = set()
    with HttpClient(cluster.master.url, cluster.security) as master:
        namespace = master.call(c.Greeting(), c.Greeted).namespace
        for name in tree.names(directory):
            found = master.call(m.Resolve(namespace, b"data/" + name.encode()), m.Found)
            assert found.inode is not None
            inos.add(found.inode.ino)
    return inos


def test_a_master_with_an_earlier_store(
    cluster: Cluster,
    tmp_path: Path,
    transport_options: tuple[str, ...],
    again: bool,
    allowed: set[int],
) -> None:
    """[S-earlier-store] Names, open files and files opened later give their own bytes or ESTALE."""
    tree = Tree(tmp_path / "source")
    cluster.start(1)
    cluster.add_ufs(f"file://{tree.root}", "/data")
    mounted = cluster.mount(0, "/data", *transport_options)
    for name in ("lost", "other"):
        assert (mounted / name).is_dir()
    cluster.master.stop()
    (store,) = cluster.master.root.glob(".cache/cachefs/master/**/data.mdb")
    if again:
        give_again(store)
    saved = tmp_path / "saved"
    shutil.copy2(store, saved)
    cluster.master.start()

    tree.fill("lost")
    lost = {(mounted / name).stat().st_ino for name in tree.names("lost")}
    fds = open_some(tree, mounted)
    cluster.master.kill()
    shutil.copy2(saved, store)
    tree.fill("other")
    cluster.master.start()
    given = number_all(cluster, tree, "other")
    check_open(tree, fds, allowed)
    check_names(tree, mounted, "lost")
    check_names(tree, mounted, "other")
    cluster.workers[0].kill()
    cluster.workers[0].start()
    check_open(tree, fds, allowed)
    check_names(tree, mounted, "lost")
    check_names(tree, mounted, "other")
    assert bool(lost & given) is again
    close_all(fds)
    cluster.workers[0].umount(mounted)


# ---- a node alone --------------------------------------------------------------------------------


def replace_store(node: Node, mounted: Path, saved: Path, store: Path) -> None:
    """Ends the server, so that the next one finds the earlier store: the client, which starts that
    one, stands still meanwhile."""
    pids = {process["role"]: process["pid"] for process in node.processes(mounted)}
    os.kill(pids["client"], signal.SIGSTOP)
    try:
        os.kill(pids["server"], signal.SIGKILL)
        wait_until(lambda: not is_running(pids["server"]), "the server ends")
        shutil.copy2(saved, store)
    finally:
        os.kill(pids["client"], signal.SIGCONT)
    wait_until(lambda: node.run("status", mounted).returncode == 0, "the next server")
    node.processes(mounted)


def test_a_server_with_an_earlier_namespace(
    node: Node, tmp_path: Path, again: bool, allowed: set[int]
) -> None:
    """[S-earlier-store] The same where the mount's own server starts with the earlier store."""
    node.allowed_log.append(r"server|connection|lost|another file|client")
    tree = Tree(tmp_path / "source")
    mounted = node.mount(f"file://{tree.root}")
    for name in ("lost", "other"):
        assert (mounted / name).is_dir()
    (store,) = node.state.glob("sources/*/namespace/data.mdb")
    node.umount(mounted)
    if again:
        give_again(store)
    saved = tmp_path / "saved"
    shutil.copy2(store, saved)
    node.mount(f"file://{tree.root}")

    tree.fill("lost")
    lost = {(mounted / name).stat().st_ino for name in tree.names("lost")}
    fds = open_some(tree, mounted)
    tree.fill("other")
    replace_store(node, mounted, saved, store)
    given = {(mounted / name).stat().st_ino for name in tree.names("other")}
    check_open(tree, fds, allowed)
    check_names(tree, mounted, "lost")
    check_names(tree, mounted, "other")
    assert bool(lost & given) is again
    close_all(fds)
