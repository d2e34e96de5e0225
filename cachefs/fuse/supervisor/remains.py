"""What a mount leaves when it ends without its client's doing: itself, its record, and a server
that waits for a successor. Clearing each is harmless when it has gone already."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
from collections.abc import Iterable
from typing import Final

import cachefs
from cachefs.client.blocking import BlockingClient
from cachefs.client.sockets import connect_socket
from cachefs.core import messages as m
from cachefs.core.errors import CacheFSError
from cachefs.core.specs import ClientSpec
from cachefs.fuse import mounting
from cachefs.launcher.processes import is_ours
from cachefs.launcher.state import StateHome

log = logging.getLogger(__name__)

TELL_S: Final = 1.0  # a server that does not answer finds out by itself


def unmount(spec: ClientSpec, device: str) -> None:
    """Takes the mount away, unless another file system is there by now."""
    if not device:
        return
    try:
        mounting.unmount(spec.mountpoint, device)
    except (CacheFSError, OSError, subprocess.TimeoutExpired) as err:
        log.error("cannot unmount: %s", err)


def abort(device: str) -> None:
    """Ends what is still under way, whoever else still holds /dev/fuse."""
    if not device:
        return
    try:
        mounting.abort(device)
    except OSError as err:
        log.info("the connection ends with its last descriptor: %s", err)


def remove_record(spec: ClientSpec, ours: Iterable[int]) -> None:
    """Removes the record, unless it is by now that of the next mount at this place. `ours`: the
    processes of this mount that may still be there."""
    home = StateHome(spec.home)
    record = home.find_mount(spec.mountpoint)
    if record is not None:
        others = {record.pid, record.supervisor} - {0, *ours}
        if not any(is_ours(pid) for pid in others):
            home.remove_mount(spec.mountpoint, record.pid)


def tell_server(server: str, mountpoint: str) -> None:
    """A client that broke off is followed by another, so its server waits for one. A session of the
    mount that ends without a supervisor says that none comes."""
    hello = m.Hello("fuse", os.getpid(), version=cachefs.__version__, mountpoint=mountpoint)
    with (
        contextlib.suppress(CacheFSError, OSError),
        BlockingClient(connect_socket(server)) as client,
    ):
        client.call(hello, TELL_S)
