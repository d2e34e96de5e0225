"""Mounts in pods with user namespaces: the kernel shows owners through the pod's map of users.
[S-pods-users]"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import Node
from tests.integration.dataset import body
from tests.services.processes import wait_until

FIRST = 100_000  # the user of the machine that is root in the namespace
USERS = 65_536
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_CLONE, _CLOEXEC, _AT_FDCWD = 1, 0o2000000, -100
_EMPTY_PATH, _MOVE_EMPTY_PATH, _IDMAP = 0x1000, 4, 0x00100000
_libc = ctypes.CDLL(None, use_errno=True)
_NEWUSER = 0x10000000


def system_call(number: int, *arguments: object) -> int:
    found: int = _libc.syscall(number, *arguments)
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found


@pytest.fixture
def namespace() -> Iterator[int]:
    """A process in a user namespace whose root is the user `FIRST`."""
    popen = subprocess.Popen(["unshare", "--user", "sleep", "infinity"])
    status = Path(f"/proc/{popen.pid}/ns/user")
    wait_until(lambda: os.readlink(status) != os.readlink("/proc/self/ns/user"), "the namespace")
    for name in ("uid_map", "gid_map"):
        Path(f"/proc/{popen.pid}/{name}").write_text(f"0 {FIRST} {USERS}")
    yield popen.pid
    popen.send_signal(signal.SIGKILL)
    popen.wait()


def mount_mapped(source: Path, target: Path, pid: int) -> None:
    """Mounts a tree again, with the owners as the user namespace of a process sees them."""
    tree = system_call(_OPEN_TREE, _AT_FDCWD, os.fsencode(source), _CLONE | _CLOEXEC)
    namespace = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    try:
        attributes = struct.pack("=QQQQ", _IDMAP, 0, 0, namespace)
        size = len(attributes)
        system_call(_MOUNT_SETATTR, tree, b"", _EMPTY_PATH, ctypes.c_char_p(attributes), size)
        system_call(_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_EMPTY_PATH)
    finally:
        os.close(namespace)
        os.close(tree)


def read_inside(pid: int, folder: Path, name: str) -> tuple[int, bytes]:
    """Returns the owner and the bytes of a file, as root of the user namespace of a process."""
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    namespace = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)
    done, result = os.pipe()
    child = os.fork()
    if not child:
        try:
            assert _libc.setns(namespace, _NEWUSER) == 0
            os.setresuid(0, 0, 0)
            with open(os.open(name, os.O_RDONLY, dir_fd=at), "rb") as file:
                owner = os.fstat(file.fileno()).st_uid
                os.write(result, struct.pack("=I", owner))
                with open(result, "wb") as out:
                    out.write(file.read())
        finally:
            os._exit(0)
    for fd in (at, namespace, result):
        os.close(fd)
    with open(done, "rb") as answer:
        told = answer.read()
    os.waitpid(child, 0)
    return struct.unpack("=I", told[:4])[0], told[4:]


def test_a_pod_with_a_user_namespace_reads(node: Node, tmp_path: Path, namespace: int) -> None:
    source, target = tmp_path / "source", tmp_path / "pod"
    source.mkdir()
    target.mkdir()
    data = body(1, 3_000_000)
    (source / "a").write_bytes(data)
    os.chown(source / "a", 7, 7)
    path = node.mount(f"file://{source}", "--transport", "kernel")
    (path / "a").read_bytes()  # complete from now on: read with passthrough
    mount_mapped(path, target, namespace)
    try:
        assert (target / "a").stat().st_uid == FIRST + 7
        assert read_inside(namespace, target, "a") == (7, data)
    finally:
        subprocess.run(["umount", target], check=True, timeout=10)
    assert (path / "a").read_bytes() == data
