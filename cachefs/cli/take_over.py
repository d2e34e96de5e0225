"""`cachefs mount --upgrade`: the installed version takes over a mount under running readers."""

from __future__ import annotations

import os
import sys

import click

import cachefs
from cachefs.cli import output
from cachefs.cli.mounts import read_mounts
from cachefs.cli.umount import find_mount
from cachefs.core.errors import Unsupported
from cachefs.fuse.supervisor import upgrades
from cachefs.launcher.state import StateHome


def perform(where: str, home: StateHome, *, as_json: bool) -> int:
    """Asks the mount's supervisor, and says who serves now. Raises CannotMount for what is no
    mount, Unsupported for one without a supervisor, Unreachable, or what kept it."""
    mount = find_mount(where, read_mounts())
    record = home.find_mount(mount.mountpoint)
    if record is None or not record.supervisor:
        raise Unsupported(
            "this mount has no supervisor (transport pyfuse3, or another state home)",
            path=mount.mountpoint,
            remedy="unmount and mount again",
        )
    pid = upgrades.ask(home, mount.mountpoint, sys.executable)
    shown = output.text_of(os.fsencode(mount.mountpoint))
    if as_json:
        facts = {"mountpoint": shown, "pid": pid, "version": cachefs.__version__}
        output.print_json(facts)
    else:
        click.echo(f"OK, {shown} is served by version {cachefs.__version__} (pid {pid})")
    return 0
