"""`cachefs umount`: unmounts, and waits until the processes behind the mount have ended."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from cachefs.cli import detach, namespaces, output, settings
from cachefs.cli.commands import users
from cachefs.cli.mounts import locate
from cachefs.cli.namespaces import Holder
from cachefs.cli.owners import find_record_and_home
from cachefs.client.blocking import BlockingClient
from cachefs.core import messages as m
from cachefs.core.config import Config
from cachefs.core.errors import CacheFSError, CannotMount, DeadlineExceeded, InUse
from cachefs.core.mountinfo import Mount, Mounts, read_mounts
from cachefs.fuse import mounting
from cachefs.fuse.supervisor.stale_mount_cleanup import announce_mount_end
from cachefs.launcher.processes import Watch
from cachefs.launcher.state import MountRecord, StateHome, read_pointer

CLIENT_END_S: Final = 20.0
SUPERVISOR_END_S: Final = 5.0
SERVER_END_S: Final = 30.0
ASK_S: Final = 5.0  # for the status of the server
LAZY_END_S: Final = 2.0  # files may stay open indefinitely
BUSY_RETRY_S: Final = 1.0  # a user that is just ending
_RETRY_PAUSE_S: Final = 0.1


@click.command("umount")
@click.argument("where", metavar="MOUNTPOINT")
@click.option("--lazy", is_flag=True, help="Detach it now; open files stay readable.")
@settings.command_options("umount")
def command(where: str, lazy: bool, as_json: bool, chosen: Config) -> None:
    """Unmount MOUNTPOINT, and wait until its client (and a server without mounts) has ended.

    \b
    cachefs umount /mnt/data
    """
    home = settings.state_home(chosen)
    with output.announced(f"waiting for the processes of {where} to end"):
        mountpoint, note = unmount(where, home, lazy=lazy)
    shown = output.text_of(os.fsencode(mountpoint))
    if as_json:
        output.print_json({"mountpoint": shown, "unmounted": True, "lazy": lazy, "note": note})
        return
    click.echo(f"OK, {shown} is unmounted")
    if note:
        output.warn(note)


def unmount(where: str, home: StateHome, *, lazy: bool) -> tuple[str, str]:
    """Unmounts; returns the mount point, and a note on a process that has not ended yet.

    Raises CannotMount if it is no CacheFS mount, AccessDenied if it is another user's and the
    caller is not root, InUse naming the users of a busy one. The note names a process of another
    mount namespace that still has the mount: another `umount` here cannot end that.
    """
    table = read_mounts()
    mount = find_mount(where, table)
    found = find_record_and_home(mount, home)
    record, home = found if found is not None else (None, home)
    server = None
    if record is not None:
        server = read_pointer(Path(record.socket).parent, home.owner)
    if server is not None and server.stays:
        server = None  # it belongs to the node, not to its mounts
    with contextlib.ExitStack() as stack:
        # Watched from before the unmount, so that a reused pid is never waited for.
        client_watch = supervisor_watch = server_watch = None
        if record is not None:
            client_watch = stack.enter_context(Watch(record.client_process))
            supervisor_watch = stack.enter_context(Watch(record.supervisor_process))
        if server is not None:
            server_watch = stack.enter_context(Watch(server.process))
        dead = record is not None and not record.is_served()
        users.leave(mount.mountpoint)
        at_once = lazy or (dead and bool(table.covers_of(mount)))
        _uncover(mount, table, lazy=at_once)
        _detach(mount, table, lazy=at_once)
        if dead and record is not None:
            announce_mount_end(record.socket, record.mountpoint)
        if read_mounts().of_device(mount.device) or record is None:
            return mount.mountpoint, ""
        holders = namespaces.find_holders(mount.device)
        limit_s = LAZY_END_S if lazy or holders else CLIENT_END_S
        if client_watch is not None and not client_watch.ended(limit_s):
            return mount.mountpoint, _not_ended(record, lazy, holders)
        if supervisor_watch is not None and not supervisor_watch.ended(SUPERVISOR_END_S):
            return mount.mountpoint, f"its supervisor (pid {record.supervisor}) has not ended yet"
        try:
            home.remove_mount(mount.mountpoint, record.pid)
        except CacheFSError as err:
            return mount.mountpoint, f"its record stays: {err.one_line()}"
        last = not _others(record, home) and not _has_libraries(record.socket)
        if last and server_watch is not None and not server_watch.ended(SERVER_END_S):
            return mount.mountpoint, f"its server (pid {server_watch.pid}) has not ended yet"
    return mount.mountpoint, ""


def find_mount(where: str, table: Mounts) -> Mount:
    """Returns the CacheFS mount at exactly this path. Raises CannotMount."""
    place = locate(where, table)
    if place.mount is None or place.inside != place.mount.root.strip("/"):
        raise CannotMount(
            "not a cachefs mount", path=where, remedy="`cachefs status` lists the mounts"
        )
    return place.mount


def _uncover(mount: Mount, table: Mounts, *, lazy: bool) -> None:
    """Removes the covers of a mount. A lazy unmount removes those below the mount point together
    with the mount, which may be dead. Raises InUse, before any change, if files are in use."""
    covers = table.covers_of(mount)
    if not covers:
        return
    if not lazy:
        found = users.find_users(mount.mountpoint)
        if found:
            raise _busy(mount, table, found)
    mounting.uncover_root(mount.mountpoint)
    for cover in reversed(covers):
        if not lazy and cover.mountpoint != mount.mountpoint:
            mounting.umount2(cover.mountpoint, mounting.MNT_DETACH)


def _detach(mount: Mount, table: Mounts, *, lazy: bool) -> None:
    deadline = time.monotonic() + BUSY_RETRY_S
    while True:
        try:
            return detach.detach(mount.mountpoint, lazy=lazy)
        except InUse as err:
            found = users.find_users(mount.mountpoint)
            if found or time.monotonic() > deadline:
                raise _busy(mount, table, found) from err
            time.sleep(_RETRY_PAUSE_S)


def _busy(mount: Mount, table: Mounts, found: list[users.User]) -> InUse:
    below = table.below(mount.mountpoint)
    if found:
        own = os.getpid()  # it may have inherited a descriptor of the mount from its caller
        by = users.describe([user for user in found if user.pid != own] or found)
    elif below:
        by = f"the mount {below[0].mountpoint} below it"
    else:
        by = "processes that you may not see" if os.geteuid() else "the kernel"
    remedy = "end what uses it, or unmount with --lazy"
    return InUse(f"in use by {by}", path=mount.mountpoint, remedy=remedy)


def _not_ended(record: MountRecord, lazy: bool, holders: Sequence[Holder]) -> str:
    if holders:
        where = ", ".join(holder.describe() for holder in holders)
        first = holders[0]
        return (
            f"another mount namespace still has the mount: {where}; its client (pid {record.pid}) "
            f"keeps running; end that process, or: nsenter -t {first.pid} -m umount "
            f"{shlex.quote(first.mountpoint)}"
        )
    if lazy:
        return f"files are still open; its client (pid {record.pid}) ends with the last of them"
    raise DeadlineExceeded(
        f"unmounted, but its client (pid {record.pid}) has not ended",
        path=record.mountpoint,
        remedy=f"look at its log, or end it: kill {record.pid}",
    )


def _has_libraries(socket: str) -> bool:
    """Returns whether programs read by the server without a mount: it runs on for them."""
    try:
        with BlockingClient.connect(socket) as client:
            reply = client.call(m.Status(), ASK_S)
    except (CacheFSError, OSError):
        return False  # it has ended, or ends
    return isinstance(reply, m.StatusReply) and bool(reply.status.get("libraries"))


def _others(record: MountRecord, home: StateHome) -> bool:
    """Returns whether other mounts use the same server."""
    return any(
        other.socket == record.socket and other.mountpoint != record.mountpoint
        for other in home.mount_records()
        if other.is_served()
    )
