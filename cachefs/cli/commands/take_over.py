"""`cachefs mount --upgrade`: the installed version takes over mounts under running readers: the
clients, the supervisors, and then the servers that mounts started."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Sequence
from typing import Final

import click
import msgspec

import cachefs
from cachefs.cli import output
from cachefs.cli.commands.umount import find_mount
from cachefs.cli.owners import shown_user
from cachefs.cli.session import connected
from cachefs.client.blocking import BlockingClient
from cachefs.core import messages as m
from cachefs.core.errors import AccessDenied, CacheFSError, DeadlineExceeded, Unsupported
from cachefs.core.mountinfo import read_mounts
from cachefs.fuse.supervisor import upgrades
from cachefs.launcher import hung_server
from cachefs.launcher.process_watch import Watch
from cachefs.launcher.state import MountRecord, StateHome

FAILED: Final = 1
SERVER_S: Final = 60.0  # for a client to start the next server
_PAUSE_S: Final = 0.1


class Upgraded(msgspec.Struct):
    """The result of upgrading one mount. `pid`: of the client. `note`: a part that still runs
    another version. `error`: why nothing changed."""

    mountpoint: str
    pid: int = 0
    version: str = ""
    server_version: str = ""
    note: str = ""
    error: str = ""

    def line(self) -> str:
        if self.error:
            return self.error
        rest = f"; {self.note}" if self.note else ""
        return f"OK, {self.mountpoint} is served by version {self.version} (pid {self.pid}){rest}"


def perform(where: str, home: StateHome, *, as_json: bool) -> int:
    """Upgrades one mount and prints its new client. Raises CannotMount if nothing is mounted there,
    Unsupported for a mount without a supervisor, Unreachable, or why the upgrade failed."""
    mount = find_mount(where, read_mounts())
    _check_owner(mount.mountpoint, mount.owner_uid)
    record = _record(mount.mountpoint, home)
    done = _take_over(record, home)
    _renew(home.find_mount(record.mountpoint) or record, done)
    if as_json:
        output.print_json(msgspec.to_builtins(done))
    else:
        click.echo(done.line())
    return 0


def perform_all(home: StateHome, *, as_json: bool) -> int:
    """Upgrades every mount of a state home: first all clients, then their servers. Prints a line
    for each; returns 1 if any upgrade failed."""
    mounted = {mount.mountpoint for mount in read_mounts().ours()}
    records = [record for record in home.mount_records() if record.mountpoint in mounted]
    done = [(record, _try(record, home)) for record in records]
    for record, upgraded in done:
        if not upgraded.error:
            _renew(home.find_mount(record.mountpoint) or record, upgraded)
    _say([upgraded for _, upgraded in done], as_json)
    return FAILED if any(upgraded.error for _, upgraded in done) else 0


def _record(mountpoint: str, home: StateHome) -> MountRecord:
    record = home.find_mount(mountpoint)
    if record is not None:
        _check_owner(mountpoint, record.owner)
    if record is None or not record.supervisor:
        raise Unsupported(
            "this mount has no supervisor (transport pyfuse3, or another state home)",
            path=mountpoint,
            remedy="unmount and mount again",
        )
    return record


def _check_owner(mountpoint: str, uid: int) -> None:
    """Raises AccessDenied for another user's mount, also for root: an upgrade runs as the
    caller."""
    if uid in (-1, os.geteuid()):
        return
    owner = shown_user(uid)
    shown = shlex.quote(mountpoint)
    remedy = f"upgrade it as that user: sudo -H -u {owner} cachefs mount --upgrade {shown}"
    raise AccessDenied(f"it is a mount of user {owner}", path=mountpoint, remedy=remedy)


def _take_over(record: MountRecord, home: StateHome) -> Upgraded:
    pid = upgrades.ask(home, record.mountpoint, sys.executable)
    shown = output.text_of(os.fsencode(record.mountpoint))
    return Upgraded(shown, pid, cachefs.__version__)


def _try(record: MountRecord, home: StateHome) -> Upgraded:
    try:
        return _take_over(_record(record.mountpoint, home), home)
    except CacheFSError as err:
        shown = output.text_of(os.fsencode(record.mountpoint))
        return Upgraded(shown, error=err.one_line())


def _say(done: Sequence[Upgraded], as_json: bool) -> None:
    if as_json:
        return output.print_json([msgspec.to_builtins(one) for one in done])
    for one in done:
        click.echo(f"cachefs: {one.line()}" if one.error else one.line(), err=bool(one.error))
    if not done:
        click.echo("nothing is mounted")


def _renew(record: MountRecord, done: Upgraded) -> None:
    """Replaces the server of an upgraded mount if it runs another version."""
    try:
        done.server_version = _version_of(record)
        if done.server_version != cachefs.__version__:
            renew_server(record)
            done.server_version = _version_of(record)
    except CacheFSError as err:
        done.note = f"its server is of version {done.server_version or '?'}: {err.one_line()}"
        return
    if done.server_version != cachefs.__version__:
        done.note = f"its server is of version {done.server_version}: the client of another mount"
        done.note += " started it; upgrade all of them: cachefs mount --upgrade --all"


def _version_of(record: MountRecord) -> str:
    with connected(record) as client:
        return client.welcome.version


def renew_server(record: MountRecord) -> None:
    """Ends the server of a mount, so that a client starts the next one; readers wait. Raises
    Unsupported for a worker of a service manager, DeadlineExceeded without a new server."""
    with connected(record) as client:
        pid = client.welcome.pid
        found = _server_of(record, client)
    if found is None:
        raise Unsupported(
            "a mount may not end the worker of this node",
            remedy="restart it as it was started, e.g. systemctl restart cachefs-worker",
        )
    with found as watch:
        hung_server.end(watch)
    _wait_for_another(record, pid)


def _server_of(record: MountRecord, client: BlockingClient) -> Watch | None:
    """Returns the server process of a client if mounts may end it. Its pid comes from the kernel:
    the server may run in another pid namespace. A reply proves that it lived after the watch began,
    so the pid was not reused."""
    found = hung_server.find_server(record.socket, client.listener)
    if found is not None:
        try:
            client.call(m.Status())
        except BaseException:
            found.__exit__()
            raise
    return found


def _wait_for_another(record: MountRecord, pid: int) -> None:
    deadline = time.monotonic() + SERVER_S
    while time.monotonic() < deadline:
        with (
            contextlib.suppress(CacheFSError, OSError),  # it is being started
            BlockingClient.connect(record.socket) as client,
        ):
            if client.welcome.pid != pid:
                return
        time.sleep(_PAUSE_S)
    raise DeadlineExceeded(
        f"no server has answered for {SERVER_S:g} s",
        path=record.mountpoint,
        remedy=f"cachefs logs {shlex.quote(record.mountpoint)}",
    )
