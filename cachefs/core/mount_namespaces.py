"""The mount namespaces of this machine's processes, and calls inside one of them.

A call runs in a separate thread, which enters the namespace and the root of a process. `proc` is
a descriptor of this process's directory in /proc: the other root may have none, or another one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from cachefs.core.errors import lacks_descriptors
from cachefs.core.mountinfo import Mount, Mounts, read_mounts

CALL_S: Final = 5.0  # in one namespace
_CLONE_FS, _CLONE_NEWNS = 0x200, 0x20000
_MNT_DETACH: Final = 2
_MOST_BYTES: Final = 4096
_FIRST_PIDS: Final = "pid:[4026531836]"  # the namespace of all processes: PROC_PID_INIT_INO


class MountNamespace(NamedTuple):
    """`pid`: of a process in it. `is_own`: of this process."""

    pid: int
    is_own: bool
    mounts: Mounts


def namespaces(*, needs_all: bool = False) -> Iterator[MountNamespace]:
    """Yields the namespaces that this process may see, its own first, and another one again for
    each root of its processes: a process sees the mounts below its root. The mounts are read when
    it is yielded. Raises OSError; `needs_all`: also where no descriptor is left for another one."""
    own = os.readlink("/proc/self/ns/mnt")
    yield MountNamespace(os.getpid(), True, read_mounts())
    seen: set[tuple[str, str]] = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                place = os.readlink(f"/proc/{name}/ns/mnt"), os.readlink(f"/proc/{name}/root")
                if place[0] == own or place in seen:
                    continue
                mounts = read_mounts(Path("/proc", name, "mountinfo"))
            except OSError as err:  # it has ended, or belongs to another user
                if needs_all and lacks_descriptors(err):
                    raise
                continue
            seen.add(place)
            yield MountNamespace(int(name), False, mounts)


def sees_all() -> bool:
    """Returns whether `namespaces` yields those of all processes of the machine."""
    return os.geteuid() == 0 and os.readlink("/proc/self/ns/pid") == _FIRST_PIDS


def call_in(
    namespace: MountNamespace,
    act: Callable[[int], object],
    ended: Callable[[], object] = lambda: None,
) -> None:
    """Calls `act(proc)` inside a namespace, and then `ended()` in any case. Raises OSError, also if
    the call takes longer than `CALL_S`: then it continues."""
    failed: list[OSError] = []

    def run() -> None:
        try:
            with _entered(namespace) as proc:
                act(proc)
        except OSError as err:
            failed.append(err)
        finally:
            ended()

    thread = threading.Thread(target=run, name="mount-namespace", daemon=True)
    thread.start()
    thread.join(CALL_S)
    if thread.is_alive():
        raise OSError(f"it takes more than {CALL_S:g} s")
    if failed:
        raise failed[0]


@contextlib.contextmanager
def _entered(namespace: MountNamespace) -> Iterator[int]:
    """Moves this thread, alone, into a namespace and the root of its process."""
    with contextlib.ExitStack() as stack:
        proc = os.open("/proc/self", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, proc)
        if _libc().unshare(_CLONE_FS):
            raise _error()
        if not namespace.is_own:
            _enter(namespace.pid)
        yield proc


def _enter(pid: int) -> None:
    space = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_CLOEXEC)
    try:
        if _libc().setns(space, _CLONE_NEWNS):
            raise _error()
        os.fchdir(root)
        os.chroot(".")
    finally:
        os.close(space)
        os.close(root)


@contextlib.contextmanager
def opened_root(mount: Mount, proc: int) -> Iterator[int]:
    """Opens the root of a mount of this thread's namespace (O_PATH). Raises OSError if the mount is
    not on top of its mount point."""
    fd = os.open(mount.mountpoint, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if _mount_id(fd, proc) != mount.mount_id:
            raise FileNotFoundError(f"the mount at {mount.mountpoint} is gone, or hidden")
        yield fd
    finally:
        os.close(fd)


def detach(root: int, proc: int) -> None:
    """Unmounts the mount whose root is open as `root`, in this thread's namespace; its open files
    stay readable. Raises OSError."""
    os.fchdir(proc)
    if _libc().umount2(b"fd/%d" % root, _MNT_DETACH):
        raise _error()


def _mount_id(fd: int, proc: int) -> str:
    info = os.open(f"fdinfo/{fd}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    try:
        lines = os.read(info, _MOST_BYTES).splitlines()
    finally:
        os.close(info)
    return next((line.split()[1].decode() for line in lines if line.startswith(b"mnt_id:")), "")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _error() -> OSError:
    return OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
