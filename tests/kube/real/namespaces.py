"""The namespaces in which the tests of a real node run: mounts, processes and a network of their
own, so that nothing of a cluster is seen outside, however its tests end.

The tests run inside too, because they look at what the node sees: its mounts, its pids, its
sockets on loopback. When the first process of the namespaces ends, by a SIGKILL too, the kernel
ends all others, and with them go the mounts and the addresses. For root.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

INSIDE: Final = "CACHEFS_TEST_KUBE"  # set in the environment of the tests
NODE_ADDRESS: Final = "192.0.2.1"  # a second address of loopback: the kubelet refuses 127.0.0.1
COMMAND_LIMIT_S: Final = 20.0
_UP: Final = 0x1 | 0x40  # IFF_UP, IFF_RUNNING
_SIOCSIFADDR: Final = 0x8916
_SIOCSIFNETMASK: Final = 0x891C
_SIOCSIFFLAGS: Final = 0x8914
# A kubelet writes these on its start; they are the whole machine's.
_MACHINE_SETTINGS: Final = (
    "vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
)  # fmt: skip


def entered(*command: str) -> list[str]:
    """Returns what runs the command as the first process of new namespaces."""
    return [
        "unshare", "--mount", "--propagation=private", "--net", "--pid", "--fork", "--kill-child",
        "--mount-proc", *command,
    ]  # fmt: skip


def prepare() -> None:
    """Raises loopback, and puts memory over the directories of the machine that a node writes:
    /run, and /var, whose files stay to be read."""
    run_command("mount", "-t", "tmpfs", "tmpfs", "/run")
    layers = tempfile.mkdtemp(dir="/run")
    run_command("mount", "-t", "tmpfs", "tmpfs", layers)
    for name in ("upper", "work"):
        os.mkdir(f"{layers}/{name}")
    options = f"lowerdir=/var,upperdir={layers}/upper,workdir={layers}/work"
    run_command("mount", "-t", "overlay", "overlay", "-o", options, "/var")
    _raise_loopback()


def run_command(*command: str) -> str:
    """Returns what a command prints. Raises CalledProcessError, which tells its errors."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_LIMIT_S)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
    done.check_returncode()
    return done.stdout


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for name, address, netmask in (
            ("lo", "127.0.0.1", "255.0.0.0"),
            ("lo:1", NODE_ADDRESS, "255.255.255.255"),
        ):
            for request, value in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, netmask)):
                packed = struct.pack(
                    "16sHH4s8x", name.encode(), socket.AF_INET, 0, socket.inet_aton(value)
                )
                fcntl.ioctl(sock, request, packed)
            fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH", name.encode(), _UP))


def run_first(command: list[str]) -> int:
    """Runs a command from the first process of a pid namespace, which also collects the processes
    that lost their parents. Returns the command's exit status."""
    started = subprocess.Popen(command, env={**os.environ, INSIDE: "1"})
    while True:
        pid, status = os.wait()
        if pid == started.pid:
            started.returncode = os.waitstatus_to_exitcode(status)
            return started.returncode


@contextlib.contextmanager
def machine_settings_kept() -> Iterator[None]:
    """Writes back, at its end, the settings of the machine that a kubelet changes."""
    before = {name: _setting(name).read_text() for name in _MACHINE_SETTINGS}
    try:
        yield
    finally:
        for name, value in before.items():
            if _setting(name).read_text() != value:
                _setting(name).write_text(value)


def _setting(name: str) -> Path:
    return Path("/proc/sys") / name
