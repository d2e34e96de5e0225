"""Readers of a cold bucket where the client of a mount, or their own process, may open no more
files: each gets an error, the connection to the server stays, and all is well afterwards."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from cachefs.client.lost_descriptors import CAUSE
from cachefs.core.mountinfo import Mounts
from cachefs.library.library import Library
from cachefs.library.tree import Tree
from tests.integration.conftest import Bucket, Node
from tests.integration.dataset import body, images
from tests.services.descriptors import descriptors_left, no_descriptor_left

READERS = 16


@pytest.fixture
def files() -> dict[str, bytes]:
    return {**images(40, size=3_000), "big.bin": body(7, 12 << 20)}


@pytest.fixture
def library() -> Iterator[Library]:
    made = Library()
    yield made
    made.close()


def test_of_a_mount(node: Node, bucket: Bucket, files: dict[str, bytes]) -> None:
    """[S-errors] The limit is the mount's, so the error is not that of the reader's own limit."""
    bucket.fill(files)
    options = ("--sync-interval", "1h", "--files-ahead", "0")
    mnt = node.mount(bucket.url, *bucket.options, *options)
    (client,) = (one["pid"] for one in node.processes(mnt) if one["role"] == "client")
    first, *others = files
    assert (mnt / first).read_bytes() == files[first]

    def read(name: str) -> int:
        try:
            return 0 if (mnt / name).read_bytes() == files[name] else errno.EIO
        except OSError as err:
            return err.errno or errno.EIO

    with no_descriptor_left(client):
        assert {read(name) for name in others} == {errno.ENFILE}
    with descriptors_left(2, client), ThreadPoolExecutor(READERS) as pool:
        assert set(pool.map(read, others)) <= {0, errno.ENFILE}
    for name, data in files.items():
        assert (mnt / name).read_bytes() == data
    node.allowed_log += [CAUSE, "Too many open files"]  # a lost connection is not among these


def mounts_change(library: Library) -> None:
    """Somewhere on this machine something is mounted, as the kernel reports it."""
    table = library._mounts
    table._mounts = Mounts(table.current())
    table.version += 1


def test_of_a_program(
    node: Node, bucket: Bucket, library: Library, files: dict[str, bytes]
) -> None:
    """[S-library-errors] A few descriptors are enough for a batch. Without any, each file of it has
    its own error, with its name, also when mounts have changed."""
    bucket.fill(files)
    mnt = node.mount(bucket.url, *bucket.options, "--sync-interval", "1h")
    tree = Tree(str(mnt), {"home": str(node.state)}, lambda: library)
    names = sorted(files)
    tree.stat_batch(names)
    session = library.locate(str(mnt), {"home": str(node.state)}).source.session
    epoch = session.epoch
    with descriptors_left(8):  # most replies with descriptors have no room: fewer are requested
        assert tree.read_batch(names) == [files[name] for name in names]
    for _ in range(2):
        mounts_change(library)
        with no_descriptor_left():
            got = tree.read_batch(names, on_error="return")
            with pytest.raises(OSError) as caught:
                tree.open(names[0])
        assert {one.errno for one in (*got, caught.value)} == {errno.EMFILE}
        assert [one.filename for one in got] == [f"{mnt}/{name}" for name in names]
        assert tree.read_batch(names) == [files[name] for name in names]
    assert session.epoch == epoch, "the connection was kept"
