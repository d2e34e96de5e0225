"""[S-orders] Orders announced through a real mount, by an ordinary user and without the socket of
the node's server: every byte comes from the origin once, most files before they are opened."""

from __future__ import annotations

import array
import errno
import fcntl
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cachefs.cli.session import find_target
from cachefs.core.order_ioctl import END, PIECE, STATE, ListPiece, ListState, pieces
from cachefs.core.order_messages import MOST_ORDERS
from cachefs.launcher.state import StateHome
from tests.integration import order_reader
from tests.integration.conftest import Bucket, Node
from tests.services.cluster import Cluster
from tests.services.intruder import NOBODY
from tests.services.namespaces import with_mount
from tests.services.processes import is_running, wait_until

FILES = 300
SIZE = 90_000
PROGRAM = Path(__file__).with_name("order_reader.py")
REPOSITORY = Path(__file__).parents[2]
LIMIT_S = 120.0


def filled(bucket: Bucket) -> dict[str, bytes]:
    rng = random.Random(5)
    files = {f"{number:04}": rng.randbytes(SIZE) for number in range(FILES)}
    bucket.fill({f"train/{name}": data for name, data in files.items()})
    return files


def digest_of(files: dict[str, bytes], seed: int) -> str:
    names = sorted(files)
    random.Random(seed).shuffle(names)
    return hashlib.sha256(b"".join(files[name] for name in names)).hexdigest()


def read_in_order(command: list[str], **how: Any) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, **how)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def origin_bytes(node: Node, mount: Path) -> int:
    found: int = node.status(mount)["cache"]["origin_bytes"]
    return found


def socket_of(node: Node, mount: Path) -> str:
    return str(find_target(str(mount), StateHome(str(node.state))).record.socket)


def test_an_ordinary_user_announces_through_the_mount(node: Node, bucket: Bucket) -> None:
    files = filled(bucket)
    mount = node.mount(bucket.url, *bucket.options)
    directory = os.open(mount / "train", os.O_RDONLY | os.O_DIRECTORY)

    said = as_nobody(lambda: order_reader.read_in_order(directory, 3))
    os.close(directory)
    assert "error" not in said, said
    assert said["uid"] == NOBODY
    assert said["digest"] == digest_of(files, 3)
    assert said["state"]["total"] == FILES
    assert origin_bytes(node, mount) == FILES * SIZE
    assert node.status(mount)["ahead_files"] > FILES // 2


def as_nobody(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Runs it in a process of another user, and returns what it returns."""
    result, to_parent = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            os.write(to_parent, json.dumps(work()).encode())
        except Exception as err:  # noqa: BLE001 -- it is shown
            os.write(to_parent, json.dumps({"error": repr(err)}).encode())
        finally:
            os._exit(0)
    os.close(to_parent)
    with os.fdopen(result) as pipe:
        said: dict[str, Any] = json.load(pipe)
    os.waitpid(pid, 0)
    return said


def test_a_mount_namespace_without_the_socket(node: Node, bucket: Bucket) -> None:
    files = filled(bucket)
    mount = node.mount(bucket.url, *bucket.options)
    socket = socket_of(node, mount)
    assert os.path.exists(socket)
    hidden = 'mount -t tmpfs none "$0" && exec "$@"'
    command = ["sh", "-c", hidden, str(node.home), sys.executable, "-I", str(PROGRAM)]
    arguments = [str(REPOSITORY), str(mount / "train"), socket, "4"]
    said = read_in_order(with_mount(mount, *command, *arguments))
    assert not said["has_socket"]
    assert said["digest"] == digest_of(files, 4)
    assert origin_bytes(node, mount) == FILES * SIZE
    assert node.status(mount)["ahead_files"] > FILES // 2


def test_a_cache_for_a_part_of_the_data(node: Node, bucket: Bucket) -> None:
    """Several epochs: what the cache refuses comes from the origin once in each."""
    files = filled(bucket)
    mount = node.mount(bucket.url, *bucket.options, "--cache-size", "16MiB")
    arguments = [str(REPOSITORY), str(mount / "train"), "/none"]
    before = cached = 0
    for epoch in range(3):
        expected = FILES - cached
        seed = str(10 + epoch)
        said = read_in_order([sys.executable, "-I", str(PROGRAM), *arguments, seed])
        assert said["digest"] == digest_of(files, 10 + epoch)
        node.wait_until_recorded(mount)
        now = origin_bytes(node, mount)
        assert now - before <= 1.02 * expected * SIZE, f"epoch {epoch}: {cached} were cached"
        cached = node.status(mount)["cache"]["tiers"][0]["files"]
        before = now
    assert 0 < cached < FILES


def test_wrong_pieces_and_the_end(node: Node, bucket: Bucket) -> None:
    filled(bucket)
    mount = node.mount(bucket.url, *bucket.options)
    directory = os.open(mount / "train", os.O_RDONLY | os.O_DIRECTORY)
    inos = array.array("Q", (entry.inode() for entry in os.scandir(mount / "train")))
    (piece,) = pieces("o", inos)
    fcntl.ioctl(directory, PIECE, piece)
    wrong = ListPiece("o", FILES + 1, FILES + 2, 0, 8, 0, bytes(8)).encode()
    for command, argument, expected in (
        (PIECE, wrong, errno.EINVAL),
        (PIECE, bytearray(len(piece)), errno.EINVAL),
        (STATE, bytearray(ListPiece("unknown").header()), errno.ENOENT),
        (STATE + 1, bytearray(120), errno.ENOTTY),
    ):
        with pytest.raises(OSError) as failed:
            fcntl.ioctl(directory, command, argument)
        assert failed.value.errno == expected, hex(command)
    fcntl.ioctl(directory, STATE, bytearray(ListPiece("o").header()))
    fcntl.ioctl(directory, END, ListPiece("o").header())
    with pytest.raises(OSError) as failed:
        fcntl.ioctl(directory, STATE, bytearray(ListPiece("o").header()))
    assert failed.value.errno == errno.ENOENT
    os.close(directory)
    file = os.open(mount / "train" / "0000", os.O_RDONLY)
    with pytest.raises(OSError) as failed:
        fcntl.ioctl(file, PIECE, piece)
    assert failed.value.errno == errno.ENOTTY
    os.close(file)


def test_users_of_a_mount_have_orders_of_their_own(node: Node, bucket: Bucket) -> None:
    """Neither the names nor the number of one user's orders concern another one, also where the
    kernel names no user in a request (mounts that may be mapped, Linux >= 6.12)."""
    filled(bucket)
    mount = node.mount(bucket.url, *bucket.options)
    directory = os.open(mount / "train", os.O_RDONLY | os.O_DIRECTORY)
    with os.scandir(directory) as entries:
        inos = [entry.inode() for entry in entries]

    def announce(inos: list[int]) -> int:
        """Announces as many orders as a user may. Returns the length of the first one."""
        for number in range(MOST_ORDERS):
            for argument in pieces(f"o{number}", inos):
                fcntl.ioctl(directory, PIECE, argument)
        state = bytearray(ListPiece("o0").header())
        fcntl.ioctl(directory, STATE, state)
        return ListState.decode(state).total

    def announce_and_end() -> dict[str, Any]:
        total = announce(inos[:5])
        fcntl.ioctl(directory, END, ListPiece("o0").header())
        return {"total": total}

    assert announce(inos) == FILES
    assert as_nobody(announce_and_end) == {"total": 5}
    state = bytearray(ListPiece("o0").header())
    fcntl.ioctl(directory, STATE, state)
    assert ListState.decode(state).total == FILES
    (one_more,) = pieces("one more", inos)
    with pytest.raises(OSError) as failed:
        fcntl.ioctl(directory, PIECE, one_more)
    assert failed.value.errno == errno.EINVAL
    os.close(directory)


@pytest.mark.parametrize("role", ["client", "server"])
def test_a_process_that_is_killed_costs_the_order_and_no_byte(
    node: Node, bucket: Bucket, role: str
) -> None:
    files = filled(bucket)
    mount = node.mount(bucket.url, *bucket.options)
    node.allowed_log += ["lost", "ended", "connection", "takes over", "stop"]
    directory = os.open(mount / "train", os.O_RDONLY | os.O_DIRECTORY)
    names = {name: os.stat(mount / "train" / name).st_ino for name in files}
    for piece in pieces("o", names.values()):
        fcntl.ioctl(directory, PIECE, piece)
    for number, (name, data) in enumerate(files.items()):
        if number == FILES // 3:
            (pid,) = [one["pid"] for one in node.processes(mount) if one["role"] == role]
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda pid=pid: not is_running(pid), "the process has ended")
        assert (mount / "train" / name).read_bytes() == data
    for piece in pieces("o", names.values()):
        fcntl.ioctl(directory, PIECE, piece)
    os.close(directory)


def test_the_command_announces_names(node: Node, bucket: Bucket) -> None:
    files = filled(bucket)
    mount = node.mount(bucket.url, *bucket.options)
    names = sorted(files)
    random.Random(1).shuffle(names)
    listed = node.root / "names.txt"
    listed.write_text("".join(f"train/{name}\n" for name in names))
    said = json.loads(node.ok("order", mount, "--files-from", listed, "--json"))
    assert said["files"] == FILES
    assert [(mount / "train" / name).read_bytes() for name in names] == [files[n] for n in names]
    assert origin_bytes(node, mount) == FILES * SIZE
    assert node.status(mount)["ahead_files"] > FILES // 2
    node.ok("order", mount, "--files-from", "/dev/null", "--follow")
    listed.write_text("train/none\n")
    assert "no such file" in node.fails("order", mount, "--files-from", listed)
    assert "no announcements" in node.fails("order", node.root, "--files-from", "/dev/null")


def test_the_owners_in_a_cluster_are_requested_ahead(cluster: Cluster, bucket: Bucket) -> None:
    """Two workers; the order is announced on one node. Each byte comes from the origin once."""
    files = filled(bucket)
    cluster.start(2)
    cluster.add_ufs(bucket.url, "/data", *bucket.options)
    cluster.wait_until_met()
    mount, other = (cluster.mount(number, "/data") for number in range(2))
    said = read_in_order(
        [sys.executable, "-I", str(PROGRAM), str(REPOSITORY), str(mount / "train"), "/none", "6"]
    )
    assert said["digest"] == digest_of(files, 6)
    cluster.wait_until_recorded()
    status = cluster.workers[0].json("status", mount)
    theirs = cluster.workers[1].json("status", other)["cache"]["origin_bytes"]
    assert status["cache"]["origin_bytes"] + theirs == FILES * SIZE
    assert status["cache"]["peer_bytes"] > FILES * SIZE // 4
    assert status["ahead_files"] > FILES // 2
