"""Starts masters and workers as separate processes, and finds a cluster's worker on this machine.

A mount prefers a worker that stays without mounts (`cachefs worker`) to one that a mount started.
If there is neither, it starts one, which has weight 0 and ends with the last mount.
"""

from __future__ import annotations

import collections
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from cachefs.core import tiers
from cachefs.core.addresses import address_of
from cachefs.core.install import check_extra
from cachefs.core.specs import MasterSpec, Started, WorkerSpec
from cachefs.fuse.file_systems import MEMORY, file_system_of
from cachefs.launcher import state
from cachefs.launcher.processes import (
    SERVER_START_S,
    Server,
    answers,
    cache_size,
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
RETURN_S: Final = 4.0  # for a worker that its service manager restarts
_POLL_S: Final = 0.1


def start_master(spec: MasterSpec, err_log: Path | None, *, command: Sequence[str] = ()) -> Started:
    """Starts a master and waits until it answers. `err_log`: None = our standard error. Raises the
    typed error of a failed start; the process has ended then."""
    check_extra("cluster", CLUSTER_MODULES, "a cluster")
    document = msgspec.msgpack.encode(spec)
    return start_child(
        command or module_command(MASTER_MODULE), document, err_log, SERVER_START_S, reap=False
    )


def start_worker(
    spec: WorkerSpec, *, background: bool, reap: bool = False, command: Sequence[str] = ()
) -> Started:
    """Starts a worker and waits until it is a member; it holds the locks `spec.launch_fds` until
    then. Raises as `start_master`."""
    check_extra("cluster", CLUSTER_MODULES, "a cluster")
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


def node_dir(spec: WorkerSpec) -> Path:
    """Returns the directory of a worker: its socket, its pointer, its log."""
    return StateHome(spec.home).node_dir(address_of(spec.master), spec.name)


def ensure_node(
    spec: WorkerSpec, used: str = "", *, command: Sequence[str] = (), hang_limit_s: float = 0.0
) -> Server:
    """Returns a worker of the cluster that answers on this machine: the one at the socket `used`,
    any other, or a new one from `spec`. Kills the worker that mounts started when it does not
    answer for `hang_limit_s` (0: never). Raises the typed error of a failed start, Unreachable when
    that worker hangs."""
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
    """Waits up to `RETURN_S` for the restart of a worker, so that its mounts keep their cache."""
    deadline = time.monotonic() + RETURN_S
    while time.monotonic() < deadline:
        pointer = read_pointer(directory)
        if pointer is not None and pointer.process.lives():
            return
        time.sleep(_POLL_S)


def find_node(home: StateHome, address: str, used: str = "") -> Pointer | None:
    """Returns the best worker of a cluster that answers on this machine: the one in use, then those
    that stay without mounts, then those with the fewest mounts. None if none answers."""
    found = [pointer for path in home.node_dirs(address) if (pointer := read_pointer(path))]
    mounts = collections.Counter(record.socket for record in home.mount_records())
    for pointer in sorted(found, key=lambda p: (p.socket != used, not p.stays, mounts[p.socket])):
        if pointer.process.lives() and answers(pointer):
            return pointer
    return None


def tier_of(directory: str | Path, asked_bytes: int, *, trust: bool = False) -> str:
    """Returns the tier specification of a directory, of `asked_bytes` or (0) the default size.
    `trust`: see `check_own`. Raises AccessDenied, NoSpace."""
    path = usable_cache_dir(directory, trust=trust)
    return f"{_kind(path)}:{path}:{cache_size(path, asked_bytes)}"


def _kind(path: Path) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return tiers.MEMORY if file_system_of(fd) in MEMORY else tiers.DISK
    finally:
        os.close(fd)
