"""Mounting without libfuse: what is asked of the kernel and of fusermount3, and what is said when
they refuse."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cachefs.core.errors import CannotMount, Unsupported
from cachefs.core.model import UfsSpec
from cachefs.core.specs import ClientSpec
from cachefs.fuse import mounting
from cachefs.fuse.kernel import mount as m
from tests.unit.fuse.kernel.requests import init_request
from tests.unit.fuse.kernel.test_negotiation import LINUX_6_18

SPEC = ClientSpec(home="/h", socket="/s", source=UfsSpec("s3://b/a,b c"), mountpoint="/mnt/x")


class Libc:
    """In place of the C library; mount(2) fails with an errno, or not."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.calls: list[tuple[Any, ...]] = []

    def mount(self, *arguments: Any) -> int:
        self.calls.append(arguments)
        ctypes.set_errno(self.number)
        return -1 if self.number else 0


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "fuse"
    path.touch()
    monkeypatch.setattr(m, "DEVICE", str(path))
    return path


def as_root(monkeypatch: pytest.MonkeyPatch, libc: Libc) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: libc)


def test_without_the_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(m, "DEVICE", str(tmp_path / "none"))
    with pytest.raises(CannotMount) as caught:
        m.mount(SPEC)
    assert "modprobe fuse" in caught.value.remedy


@pytest.mark.parametrize("allow_other", [True, False])
def test_what_root_asks_the_kernel(
    device: Path, monkeypatch: pytest.MonkeyPatch, allow_other: bool
) -> None:
    libc = Libc()
    as_root(monkeypatch, libc)
    fd = m.mount(msgspec.structs.replace(SPEC, allow_other=allow_other))
    assert not os.get_blocking(fd)
    assert not os.get_inheritable(fd)
    ((source, where, kind, flags, options),) = libc.calls
    assert (where, kind) == (b"/mnt/x", b"fuse.cachefs")
    assert source == b"s3://b/a,b%20c"
    assert flags == 1 | 2 | 4  # read-only, nosuid, nodev
    asked = options.split(b",")
    assert {f"fd={fd}".encode(), b"rootmode=40000", b"user_id=0", b"group_id=0"} <= set(asked)
    assert (b"allow_other" in asked) is allow_other
    os.close(fd)


OPTIONS = ("noexec", "noatime", "dirsync", 'context="a:b:c:d,e"')


def test_options_that_the_kernel_applies(device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libc = Libc()
    as_root(monkeypatch, libc)
    os.close(m.mount(msgspec.structs.replace(SPEC, mount_options=OPTIONS)))
    ((_, _, _, flags, data),) = libc.calls
    assert flags == 1 | 2 | 4 | 8 | 1024 | 128  # read-only, nosuid, nodev, and what is asked for
    assert data.endswith(b',context="a:b:c:d,e"')
    assert b"noexec" not in data


def test_the_tool_is_told_the_options(
    device: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    act = f"socket.send_fds(sock, [b'x'], [os.open({str(device)!r}, os.O_RDWR)])"
    said = by_tool(monkeypatch, tmp_path, act)
    os.close(m.mount(msgspec.structs.replace(SPEC, mount_options=OPTIONS[:3])))
    assert said.read_text().splitlines()[1].endswith(",noexec,noatime,dirsync")


@pytest.mark.parametrize(("number", "remedy"), [(errno.EPERM, "root"), (errno.EBUSY, "")])
def test_what_the_kernel_refuses(
    device: Path, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    as_root(monkeypatch, Libc(number))
    with pytest.raises(CannotMount) as caught:
        m.mount(SPEC)
    assert os.strerror(number) in caught.value.cause
    assert remedy in caught.value.remedy
    assert not opened(device)


def opened(path: Path) -> list[str]:
    """Descriptors of a file that this process has."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # of another thread, or that of the listing
            if os.readlink(f"/proc/self/fd/{fd}") == str(path):
                found.append(fd)
    return found


TOOL = """#!{python} -I
import os, socket, sys
open({said!r}, "w").write("\\n".join(sys.argv[1:]))
sock = socket.socket(fileno=int(os.environ["_FUSE_COMMFD"]))
{act}
"""


def by_tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, act: str) -> Path:
    """An ordinary user, whose fusermount3 does this. Returns where it writes its arguments."""
    said, tool = tmp_path / "said", tmp_path / "fusermount3"
    tool.write_text(TOOL.format(python=sys.executable, said=str(said), act=act))
    tool.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", str(tmp_path))
    return said


def test_others_mount_by_the_tool(
    device: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    act = f"socket.send_fds(sock, [b'x'], [os.open({str(device)!r}, os.O_RDWR)])"
    said = by_tool(monkeypatch, tmp_path, act)
    fd = m.mount(SPEC)
    assert os.path.samestat(os.fstat(fd), device.stat())
    assert not os.get_blocking(fd)
    assert not os.get_inheritable(fd)
    os.close(fd)
    option, options, separator, where = said.read_text().splitlines()
    assert (option, separator, where) == ("-o", "--", "/mnt/x")
    assert options.startswith(r"fsname=s3://b/a\,b%20c,subtype=cachefs,nosuid,nodev,ro")


def test_the_mount_table_has_names_as_bytes_of_utf8() -> None:
    spec = msgspec.structs.replace(SPEC, source=UfsSpec("s3://b/d ü"))
    assert mounting.source_name(spec) == "s3://b/d%20%C3%BC"


@pytest.mark.parametrize(
    ("act", "cause", "remedy"),
    [
        ("sys.exit('fusermount3: user has no write access to mountpoint')", "no write access", ""),
        (
            "sys.exit('fusermount3: option allow_other only allowed if user_allow_other is set')",
            "allow_other",
            "user_allow_other to /etc/fuse.conf",
        ),
        ("sys.exit(1)", "gives no reason", ""),
        ("sock.send(b'x')", "gave no descriptor", ""),
        ("pass", "gave no descriptor", ""),
    ],
)
def test_what_the_tool_refuses(
    device: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    act: str,
    cause: str,
    remedy: str,
) -> None:
    by_tool(monkeypatch, tmp_path, act)
    with pytest.raises(CannotMount) as caught:
        m.mount(SPEC)
    assert cause in caught.value.cause
    assert "fusermount3: " not in caught.value.cause
    assert remedy in caught.value.remedy


def test_without_the_tool(device: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotMount) as caught:
        m.mount(SPEC)
    assert "fuse3" in caught.value.remedy


# ---- INIT ----------------------------------------------------------------------------------------


def test_init_is_answered() -> None:
    ours, kernel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, kernel:
        kernel.send(init_request(45, LINUX_6_18))
        values = m.answer_init(ours.fileno(), msgspec.structs.replace(SPEC, passthrough="off"))
        assert values.resend
        assert (values.passthrough, values.why_not) == (False, "it is switched off (--passthrough)")
        assert len(kernel.recv(4096)) == 16 + 64


def test_a_kernel_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(m, "INIT_DEADLINE_S", 0.01)
    ours, kernel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, kernel, pytest.raises(CannotMount):
        m.answer_init(ours.fileno(), SPEC)


def test_a_kernel_that_is_too_old() -> None:
    ours, kernel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, kernel:
        kernel.send(init_request(22, 0))
        with pytest.raises(Unsupported):
            m.answer_init(ours.fileno(), SPEC)


@pytest.mark.parametrize(
    ("sys_admin", "inside", "why"),
    [(True, False, ""), (False, False, "CAP_SYS_ADMIN"), (True, True, "user namespaces")],
)
def test_who_may_pass_through(
    monkeypatch: pytest.MonkeyPatch, sys_admin: bool, inside: bool, why: str
) -> None:
    monkeypatch.setattr(m, "has_sys_admin", lambda: sys_admin)
    monkeypatch.setattr(m, "in_user_namespace", lambda: inside)
    said = m.why_no_passthrough(SPEC)
    assert why in said
    assert bool(said) == bool(why)
