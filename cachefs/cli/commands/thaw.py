"""`cachefs thaw`: ends the native view of a directory."""

from __future__ import annotations

import click

from cachefs.cli import output, settings, view_calls
from cachefs.core import messages as m
from cachefs.core.config import Config


@click.command("thaw")
@click.argument("path")
@settings.command_options("thaw")
def command(path: str, as_json: bool, chosen: Config) -> None:
    """End the native view of the directory PATH. Its files stay cached until their space is needed;
    open files stay open.

    \b
    cachefs thaw /mnt/data/train
    """
    with view_calls.opened(path, chosen) as (session, target):
        view_calls.check(session)
        session.call(m.Thaw(session.namespace, target.in_namespace), m.Done)
    if as_json:
        output.print_json({"path": target.shown(), "frozen": False})
    else:
        click.echo(f"OK, {target.shown()} is no longer frozen")
