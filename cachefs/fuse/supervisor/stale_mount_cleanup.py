"""The clean-up after a mount that its client did not end: the mount itself, its record, and a
server that waits for a successor. Each step is harmless if there is nothing left to clean up."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
from collections.abc import Collection
from typing import Final

import cachefs
from cachefs.client.blocking import BlockingClient
from cachefs.client.sockets import connect_socket
from cachefs.core import messages as m
from cachefs.core.errors import CacheFSError
from cachefs.core.specs import ClientSpec
from cachefs.fuse import mounting
from cachefs.launcher.state import StateHome

log = logging.getLogger(__name__)

TELL_S: Final = 1.0  # a server that does not answer notices the end without the message


def unmount(spec: ClientSpec, device: str) -> None:
    """Unmounts, unless another file system is mounted at this path by now."""
    if not device:
        return
    try:
        mounting.unmount(spec.mountpoint, device)
    except (CacheFSError, OSError, subprocess.TimeoutExpired) as err:
        log.error("cannot unmount: %s", err)


def abort(device: str) -> None:
    """Aborts the connection, even if another process still holds /dev/fuse."""
    if not device:
        return
    try:
        mounting.abort(device)
    except OSError as err:
        log.info("the connection ends with its last descriptor: %s", err)


def remove_record(spec: ClientSpec, ours: Collection[int]) -> None:
    """Removes the record unless it is the next mount's. `ours`: this mount's remaining pids."""
    home = StateHome(spec.home)
    record = home.find_mount(spec.mountpoint)
    if record is not None:
        processes = (record.client_process, record.supervisor_process)
        if not any(one.lives() for one in processes if one.pid not in ours):
            try:
                home.remove_mount(spec.mountpoint, record.pid)
            except CacheFSError as err:  # the disk of the state home cannot be written
                log.warning("the record of this mount stays: %s", err.one_line())


def announce_mount_end(server: str, mountpoint: str) -> None:
    """Ends the server's wait for a client's successor: opens and closes a session without one."""
    hello = m.Hello("fuse", os.getpid(), version=cachefs.__version__, mountpoint=mountpoint)
    with (
        contextlib.suppress(CacheFSError, OSError),
        BlockingClient(connect_socket(server)) as client,
    ):
        client.call(hello, TELL_S)
