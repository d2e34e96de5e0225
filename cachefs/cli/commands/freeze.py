"""`cachefs freeze`: lets the kernel alone show a directory that is complete here."""

from __future__ import annotations

import math
import shlex
import time
from typing import Final

import click

from cachefs.cli import output, settings, view_calls
from cachefs.cli.session import Session, Target
from cachefs.core import messages as m
from cachefs.core.config import Config
from cachefs.core.messages import ViewStatus
from cachefs.core.printable import printable

UNCOVERED_S: Final = 15.0  # a mount that takes covers is covered long before
_COVERABLE: Final = "a mount of root with the transport kernel does, if all users may access it"


@click.command("freeze")
@click.argument("path")
@click.option("--wait", is_flag=True, help="Wait until it is covered; exit code 1 if it cannot be.")
@settings.command_options("freeze")
def command(path: str, wait: bool, as_json: bool, chosen: Config) -> int:
    """Load and pin the directory PATH, and let the kernel alone show it: its files are then read
    like those of a local directory.

    \b
    cachefs freeze /mnt/data/train --wait
    cachefs views /mnt/data

    A change at the origin is shown as before: the directory is uncovered, changed, and covered
    again when it is quiet."""
    with view_calls.opened(path, chosen) as (session, target):
        view_calls.check(session)
        with output.announced(f"waiting until {target.shown()} is covered; Ctrl-C ends this"):
            view = _freeze(session, target, wait=wait)
    failed = wait and view.state != view_calls.COVERED
    if as_json:
        output.print_json(view_calls.document(view, target))
    elif failed:
        text = f"{target.shown()} is frozen but not covered: {_reason(view)}"
        click.echo(f"cachefs: {text}", err=True)
    else:
        above = _above(view, target)
        click.echo(f"OK, {target.shown()}: {above}{view_calls.text_of(view)}{_hint(view, target)}")
    return int(failed)


def _freeze(session: Session, target: Target, *, wait: bool) -> ViewStatus:
    """Repeats the request, which the server answers within 10 s, until the view is finished, or
    until no mount has covered the finished tree for `UNCOVERED_S`."""
    body = m.Freeze(session.namespace, target.in_namespace, wait)
    ready_at_s = math.inf
    while True:
        (view,) = session.call(body, m.ViewTable).views
        now_s = time.monotonic()
        ready_at_s = min(ready_at_s, now_s) if view.state == view_calls.READY else math.inf
        is_late = now_s - ready_at_s >= UNCOVERED_S
        if not wait or is_late or view.state not in view_calls.UNFINISHED:
            return view


def _reason(view: ViewStatus) -> str:
    reason = printable(view.reason) or f"its state is {view.state}"
    return f"{reason}; {_COVERABLE}" if view.state == view_calls.READY else reason


def _above(view: ViewStatus, target: Target) -> str:
    """Returns by which view above it a directory is shown."""
    if view.path == target.in_namespace.strip(b"/"):
        return ""
    return f"below {view_calls.document(view, target)['path']}, which is frozen: "


def _hint(view: ViewStatus, target: Target) -> str:
    if view.state == view_calls.COVERED:
        return ""
    return f"; `cachefs views {shlex.quote(target.record.mountpoint)}` shows its progress"
