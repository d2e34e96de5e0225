"""Mounts without libfuse: mount(2) as root, else `fusermount3`. Answers INIT."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Final

from cachefs.core.errors import CannotMount
from cachefs.core.mountinfo import FSTYPE, read_mounts
from cachefs.core.specs import ClientSpec
from cachefs.fuse import mount_flags, mounting
from cachefs.fuse.kernel.negotiation import Negotiated, negotiate
from cachefs.fuse.kernel.stack_depth import cache_directories, stack_depth

DEVICE: Final = "/dev/fuse"
INIT_DEADLINE_S: Final = 10.0
_INIT_BUFFER_BYTES: Final = 1 << 16
_DEFAULT_PAGES: Final = 256  # of kernels without the sysctl
_MS_RDONLY, _MS_NOSUID, _MS_NODEV = 1, 2, 4
_CAP_SYS_ADMIN: Final = 21
_ALL_UIDS: Final = ["0", "0", "4294967295"]  # the identity map


def mount(spec: ClientSpec) -> int:
    """Mounts. Returns /dev/fuse's descriptor (close-on-exec, non-blocking). Raises CannotMount."""
    if not os.path.exists(DEVICE):
        remedy = "load the kernel module: modprobe fuse"
        raise CannotMount("there is no /dev/fuse", remedy=remedy, path=spec.mountpoint)
    fd = _mount_as_root(spec) if os.geteuid() == 0 else _mount_by_tool(spec)
    os.set_blocking(fd, False)
    return fd


def _mount_as_root(spec: ClientSpec) -> int:
    try:
        fd = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except OSError as err:
        raise CannotMount(f"{DEVICE} cannot be opened: {err.strerror}") from err
    try:
        _mount2(spec, fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _mount2(spec: ClientSpec, fd: int) -> None:
    options = [f"fd={fd}", "rootmode=40000", "user_id=0", "group_id=0"]
    options += ["allow_other"] if spec.allow_other else []
    options += ["default_permissions"] if spec.default_permissions else []
    flags = _MS_NOSUID | _MS_NODEV | (_MS_RDONLY if spec.read_only else 0)
    flags |= mount_flags.flags_of(spec.mount_options)
    options += mount_flags.data_of(spec.mount_options)
    libc = ctypes.CDLL(None, use_errno=True)
    source, where = os.fsencode(mounting.source_name(spec)), os.fsencode(spec.mountpoint)
    if libc.mount(source, where, FSTYPE.encode(), flags, ",".join(options).encode()):
        number = ctypes.get_errno()
        remedy = "mounting needs root, or CAP_SYS_ADMIN in a container"
        raise CannotMount(
            f"the kernel refuses the mount: {os.strerror(number)}",
            remedy=remedy if number == errno.EPERM else "",
            path=spec.mountpoint,
        )


def _mount_by_tool(spec: ClientSpec) -> int:
    """Mounts with `fusermount3`, which opens the device and sends its descriptor over a socket."""
    tool = shutil.which("fusermount3")
    if tool is None:
        raise CannotMount("fusermount3 is not installed", remedy="install the package fuse3")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        done = subprocess.run(
            [tool, "-o", ",".join(mounting.mount_options(spec)), "--", spec.mountpoint],
            env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=mounting.FUSERMOUNT_S,
        )
        if done.returncode:
            raise _refused(spec, done.stderr)
        ours.settimeout(mounting.FUSERMOUNT_S)
        theirs.close()
        try:
            _, fds, _, _ = socket.recv_fds(ours, 1, 1)
        except OSError:
            fds = []
    if not fds:
        raise CannotMount("fusermount3 gave no descriptor", path=spec.mountpoint)
    os.set_inheritable(fds[0], False)
    return fds[0]


def _refused(spec: ClientSpec, said: str) -> CannotMount:
    lines = said.strip().splitlines()
    line = lines[-1] if lines else "fusermount3 gives no reason"
    remedy = ""
    if "allow_other" in said:
        remedy = "add user_allow_other to /etc/fuse.conf, or mount without --allow-other"
    return CannotMount(line.removeprefix("fusermount3: "), remedy=remedy, path=spec.mountpoint)


def answer_init(fd: int, spec: ClientSpec) -> Negotiated:
    """Answers INIT. Raises CannotMount if the kernel sends no INIT in time, Unsupported."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if not poll.poll(INIT_DEADLINE_S * 1000):
        raise CannotMount("the kernel did not start the session", path=spec.mountpoint)
    request = os.read(fd, _INIT_BUFFER_BYTES)
    values, reply = negotiate(
        request,
        may_passthrough=why_no_passthrough(spec),
        pages_limit=_pages_limit(),
        stack_depth=stack_depth(cache_directories(spec), read_mounts()),
        default_permissions=spec.default_permissions,
    )
    os.write(fd, reply)
    return values


def why_no_passthrough(spec: ClientSpec) -> str:
    """Returns why passthrough is impossible, as far as known before INIT: one line, or ""."""
    if spec.passthrough == "off":
        return "it is switched off (--passthrough)"
    if not has_sys_admin():
        return "it needs CAP_SYS_ADMIN (root)"
    return "it needs root outside of user namespaces" if in_user_namespace() else ""


def has_sys_admin() -> bool:
    """Returns whether this process has CAP_SYS_ADMIN in its user namespace."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> _CAP_SYS_ADMIN & 1)
    return False


def in_user_namespace() -> bool:
    """Returns whether this user namespace is not the machine's initial one."""
    with contextlib.suppress(OSError):
        return Path("/proc/self/uid_map").read_text().split() != _ALL_UIDS
    return False


def _pages_limit() -> int:
    try:
        return int(Path("/proc/sys/fs/fuse/max_pages_limit").read_text())
    except (OSError, ValueError):
        return _DEFAULT_PAGES
