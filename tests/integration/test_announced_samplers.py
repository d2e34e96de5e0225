"""[S-orders-again] Samplers announce their orders through a real mount: on the node's socket, by
ioctl as an ordinary user and in a mount namespace without the socket. They announce the rest again
after the server or the client was killed in the middle of an epoch."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

import cachefs.torch as ct
from cachefs.core import messages as m
from cachefs.core.errors import BadConfig
from cachefs.core.orders import Order, Share
from cachefs.core.placement import Member
from cachefs.trainers import announcer
from cachefs.trainers.mount_session import open_session
from tests.integration.conftest import Bucket, Node
from tests.integration.sampler_reader import read_by_sampler
from tests.integration.test_announced_orders import (
    FILES,
    LIMIT_S,
    REPOSITORY,
    SIZE,
    filled,
    origin_bytes,
    read_in_order,
    socket_of,
)
from tests.services.intruder import NOBODY
from tests.services.namespaces import with_mount
from tests.services.processes import is_running, wait_until

PROGRAM = Path(__file__).with_name("sampler_reader.py")
SEED = 7
MANY = 1500  # files: the server prefetches up to 1,024 beyond the furthest open
KILLED_AT = 12  # batches of 8 files
PREFETCHED = 1024 + 8 * KILLED_AT + 64  # at most, when the process is killed
AS_NOBODY = [
    "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
    "--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search",
]  # fmt: skip  # a capability for the interpreter and the repository, where only root can read them
LOCALITY = ct.Locality((Member("a", "", 1.0),), ("a",))

pytestmark = pytest.mark.timeout(LIMIT_S)


def in_order(files: dict[str, bytes], seed: int) -> str:
    """The digest of the files in the order of an epoch, by the order's own definition."""
    names = sorted(files)
    order = Order(len(names), seed, 0).indices(range(len(names)))
    return hashlib.sha256(b"".join(files[names[sample]] for sample in order)).hexdigest()


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that other users may enter, with a home for them."""
    folder = Path(tempfile.mkdtemp(prefix="cachefs-public-", dir="/tmp"))
    folder.chmod(0o755)
    (folder / "home").mkdir(mode=0o700)
    os.chown(folder / "home", NOBODY, NOBODY)
    try:
        yield folder
    finally:
        shutil.rmtree(folder / "home")
        for left in folder.iterdir():
            left.rmdir()
        folder.rmdir()


@pytest.fixture
def mounted(node: Node, bucket: Bucket, public: Path) -> Iterator[Path]:
    mount = node.mount(bucket.url, *bucket.options, name=str(public / "mnt"))
    yield mount
    node.umount(mount)


def test_an_ordinary_user(node: Node, bucket: Bucket, public: Path, mounted: Path) -> None:
    files = filled(bucket)
    arguments = [mounted / "train", public / "home" / "state", socket_of(node, mounted), SEED]
    program = [sys.executable, "-I", str(PROGRAM), str(REPOSITORY)]
    said = read_in_order([*AS_NOBODY, *program, *map(str, arguments)])
    assert (said["uid"], said["digest"]) == (NOBODY, in_order(files, SEED))
    assert origin_bytes(node, mounted) == FILES * SIZE
    assert node.status(mounted)["ahead_files"] > FILES // 2


def test_a_mount_namespace_without_the_socket(node: Node, bucket: Bucket) -> None:
    files = filled(bucket)
    mount = node.mount(bucket.url, *bucket.options)
    socket, home = socket_of(node, mount), node.home / "here"
    assert os.path.exists(socket)
    hidden = 'mount -t tmpfs none "$0" && exec "$@"'
    command = ["sh", "-c", hidden, str(node.home), sys.executable, "-I", str(PROGRAM)]
    arguments = [str(REPOSITORY), str(mount / "train"), str(home), socket, "4"]
    said = read_in_order(with_mount(mount, *command, *arguments))
    assert not said["has_socket"]
    assert said["digest"] == in_order(files, 4)
    assert origin_bytes(node, mount) == FILES * SIZE
    assert node.status(mount)["ahead_files"] > FILES // 2


class Killer:
    """Kills a process of the mount before one batch."""

    def __init__(self, node: Node, mount: Path, role: str = "server") -> None:
        self.node = node
        self.mount = mount
        self.role = role
        node.allowed_log += ["connection", "lost", "ended", "takes over", "stop"]

    def __call__(self, batch: int) -> None:
        if batch == KILLED_AT:
            (pid,) = [p["pid"] for p in self.node.processes(self.mount) if p["role"] == self.role]
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not is_running(pid), "the process has ended")


@pytest.fixture
def checked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sampler requests at each batch whether its order is still there."""
    monkeypatch.setattr(announcer, "CHECK_S", 0.0)


@pytest.fixture
def many(node: Node, bucket: Bucket) -> tuple[Path, dict[str, bytes]]:
    """A mount that prefetches nothing but announced orders, and its files."""
    files = {f"{number:04}": b"%d" % number * 400 for number in range(MANY)}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(bucket.put, (f"train/{name}" for name in files), files.values()))
    return node.mount(bucket.url, *bucket.options, "--files-ahead", "0"), files


@pytest.mark.usefixtures("checked_at_once")
@pytest.mark.parametrize(
    ("home", "options"),
    [("state", {}), ("state", {"locality": LOCALITY}), ("elsewhere", {})],
    ids=["a function", "a list", "by ioctl"],
)
def test_a_server_that_was_killed_gets_the_rest(
    node: Node, many: tuple[Path, dict[str, bytes]], home: str, options: dict[str, Any]
) -> None:
    """The next server has no order until the sampler announces the rest, and counts anew."""
    mount, files = many
    homes = {"state": str(node.state), "elsewhere": str(node.root / "elsewhere")}
    killer = Killer(node, mount)
    said = read_by_sampler(str(mount / "train"), homes[home], SEED, killer, **options)
    assert said["files"] == MANY
    assert options or said["digest"] == in_order(files, SEED)
    assert node.status(mount)["ahead_files"] > (MANY - PREFETCHED) // 2


@pytest.mark.usefixtures("checked_at_once")
def test_a_client_that_was_killed_loses_the_order_and_gets_the_rest(
    node: Node, many: tuple[Path, dict[str, bytes]]
) -> None:
    mount, files = many
    killer = Killer(node, mount, "client")
    home = str(node.root / "elsewhere")
    said = read_by_sampler(str(mount / "train"), home, SEED, killer)
    assert said["digest"] == in_order(files, SEED)
    assert node.status(mount)["ahead_files"] > (PREFETCHED + MANY) // 2


def test_a_name_that_an_ioctl_cannot_take_is_reported_and_costs_no_sample(
    node: Node, many: tuple[Path, dict[str, bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    mount, files = many
    home = str(node.root / "elsewhere")
    with caplog.at_level(logging.WARNING):
        said = read_by_sampler(str(mount / "train"), home, SEED, name="x" * 90)
    assert said["digest"] == in_order(files, SEED)
    assert "read without being announced: the name of an order has 1 to 80 bytes" in caplog.text
    assert node.status(mount)["ahead_files"] == 0


def in_memory(data: bytes) -> int:
    fd = os.memfd_create("table")
    os.write(fd, data)
    return fd


def test_tables_of_other_manifests_are_refused_and_lose_nothing(node: Node, bucket: Bucket) -> None:
    """The server names what is wrong; the session and the order that it has continue."""
    filled(bucket)
    mount = node.mount(bucket.url, *bucket.options)
    manifest = ct.Manifest(mount / "train", home=str(node.state))
    session = open_session(manifest.path, manifest.home)
    assert session is not None
    header = manifest._tables.header
    ino_fd = manifest.ino_file.fileno()
    table = os.pread(ino_fd, 1 << 20, 0)
    foreign = msgspec.structs.replace(header, namespace=bytes(15) + b"\x07").encode()
    order, share = Order(FILES, SEED, 0), Share()

    def announce(order: Order, fd: int | None) -> None:
        session.call(m.AnnounceFunction(session.namespace, "o", order, share, 0), m.Done, fd)

    announce(order, ino_fd)
    for wrong, fd, words in (
        (Order(FILES + 1, SEED, 0), ino_fd, f"the manifest has {FILES} files, the order"),
        (order, None, "no descriptor of the manifest's ino table"),
        (order, in_memory(table[:-1]), "bytes instead of"),
        (order, in_memory(b"x" * len(table)), "not a manifest's ino table"),
        (order, in_memory(foreign + table[len(foreign) :]), "the manifest is of another source"),
        (order, os.open("/dev/null", os.O_RDONLY), "not a regular file"),
    ):
        with pytest.raises(BadConfig, match=words):
            announce(wrong, fd)
        if fd not in (None, ino_fd):
            os.close(fd)
        state = session.call(m.OrderState(session.namespace, "o"), m.OrderStateReply)
        assert state.total == FILES, words
    session.close()
