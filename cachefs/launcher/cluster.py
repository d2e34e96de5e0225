"""Starts masters and nodes' workers as processes of their own, and finds the worker of a cluster
that runs on this machine.

A mount uses a worker that is there for others too (`cachefs worker`) rather than one that a mount
started; it starts one (of weight 0, which ends with the last mount) where none is.
"""

from __future__ import annotations

import collections
import importlib.util
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from cachefs.core import tiers
from cachefs.core.addresses import address_of
from cachefs.core.errors import Unsupported
from cachefs.core.install import install_command
from cachefs.core.specs import MasterSpec, Started, WorkerSpec
from cachefs.fuse.file_systems import MEMORY, file_system_of
from cachefs.launcher import state
from cachefs.launcher.processes import (
    SERVER_START_S,
    Server,
    answers,
    cache_size,
    is_ours,
    launch_lock,
    module_command,
    running,
    start_child,
    usable_cache_dir,
)
from cachefs.launcher.reserve import Reserve
from cachefs.launcher.state import Pointer, StateHome, read_pointer

MASTER_MODULE: Final = "cachefs.launcher.masterd"
NODE_MODULE: Final = "cachefs.launcher.node"
CLUSTER_MODULES: Final = ("aiohttp", "prometheus_client")  # of the extra "cluster"
MOUNTS_NODE: Final = "mounts"  # the worker that mounts start
RETURN_S: Final = 4.0  # for a worker that is being started again by whoever watches it
_POLL_S: Final = 0.1


def start_master(spec: MasterSpec, err_log: Path | None, *, command: Sequence[str] = ()) -> Started:
    """Start a master, and wait until it answers. `err_log`: None = our standard error. Raises the
    typed error of a start that failed; the process has ended then."""
    check_extra()
    document = msgspec.msgpack.encode(spec)
    return start_child(
        command or module_command(MASTER_MODULE), document, err_log, SERVER_START_S, reap=False
    )


def start_worker(
    spec: WorkerSpec, *, background: bool, reap: bool = False, command: Sequence[str] = ()
) -> Started:
    """Start a node's worker, and wait until it is a member; it holds the locks `spec.launch_fds`
    until then. Raises as `start_master`."""
    check_extra()
    directory = node_dir(spec)
    err_log = state.private_dir(directory / state.LOG_NAME) / "server.err" if background else None
    return start_child(
        command or module_command(NODE_MODULE),
        msgspec.msgpack.encode(spec),
        err_log,
        spec.origin_deadline_s + SERVER_START_S,
        reap=reap,
        pass_fds=spec.launch_fds,
    )


def check_extra() -> None:
    """Raises Unsupported where this installation cannot be part of a cluster."""
    missing = [name for name in CLUSTER_MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise Unsupported(
            f"a cluster needs the extra cluster ({', '.join(missing)})",
            remedy=install_command("cluster"),
        )


def node_dir(spec: WorkerSpec) -> Path:
    """The directory of a worker: its socket, its pointer, its log."""
    return StateHome(spec.home).node_dir(address_of(spec.master), spec.name)


def ensure_node(
    spec: WorkerSpec, used: str = "", *, command: Sequence[str] = (), hang_limit_s: float = 0.0
) -> Server:
    """A worker of the cluster that answers on this machine: the one at the socket `used`, any
    other, or a new one as `spec` says; the worker of mounts is killed when it does not answer for
    `hang_limit_s` (0: never). Raises the typed error of a start that failed, Unreachable when
    the worker of mounts hangs."""
    home, address = StateHome(spec.home), address_of(spec.master)
    if used and Path(used).parent.name != spec.name:
        _wait_for_return(Path(used).parent)
    pointer = find_node(home, address, used)
    if pointer is not None:
        return Server(pointer.socket, False, "")
    full = Reserve(spec.home).give_up_if_short()
    directory = home.node_dir(address, spec.name)
    with launch_lock(directory) as lock:
        pointer = running(directory, hang_limit_s)
        if pointer is not None:
            return Server(pointer.socket, False, "")
        spec = msgspec.structs.replace(spec, launch_fds=(lock,))
        started = start_worker(spec, background=not spec.log_to_stderr, reap=True, command=command)
    warning = "; ".join(line for line in (full, started.warning) if line)
    return Server(str(directory / state.SOCKET_NAME), True, warning)


def _wait_for_return(directory: Path) -> None:
    """Gives a worker that ended, well or not, and that somebody starts again, its time: else a
    restart would leave a mount with a second cache."""
    deadline = time.monotonic() + RETURN_S
    while time.monotonic() < deadline:
        pointer = read_pointer(directory)
        if pointer is not None and is_ours(pointer.pid):
            return
        time.sleep(_POLL_S)


def find_node(home: StateHome, address: str, used: str = "") -> Pointer | None:
    """The best of the workers of a cluster that answer on this machine: the one in use, then those
    that stay, those with few mounts first."""
    found = [pointer for path in home.node_dirs(address) if (pointer := read_pointer(path))]
    mounts = collections.Counter(record.socket for record in home.mount_records())
    for pointer in sorted(found, key=lambda p: (p.socket != used, not p.stays, mounts[p.socket])):
        if is_ours(pointer.pid) and answers(pointer):
            return pointer
    return None


def tier_of(directory: str | Path, asked_bytes: int, *, trust: bool = False) -> str:
    """A directory as a tier, of the size asked for or (0) the default one. `trust`: as of
    `check_own`. Raises AccessDenied, NoSpace."""
    path = usable_cache_dir(directory, trust=trust)
    return f"{_kind(path)}:{path}:{cache_size(path, asked_bytes)}"


def _kind(path: Path) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return tiers.MEMORY if file_system_of(fd) in MEMORY else tiers.DISK
    finally:
        os.close(fd)
