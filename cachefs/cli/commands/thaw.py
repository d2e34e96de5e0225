"""`cachefs thaw`: ends the native view of a directory."""

from __future__ import annotations

from typing import Any

import click

from cachefs.cli import output, settings, view_calls
from cachefs.core import messages as m


@click.command("thaw")
@click.argument("path")
@settings.setting_flags("thaw")
@output.json_flag
@output.debug_flag
def command(path: str, as_json: bool, debug: bool, config_file: str | None, **flags: Any) -> None:
    """End the native view of the directory PATH. Its files stay cached until their space is needed;
    open files stay open.

    \b
    cachefs thaw /mnt/data/train
    """
    with view_calls.opened(path, flags, config_file) as (session, target):
        view_calls.check(session)
        session.call(m.Thaw(session.namespace, target.in_namespace), m.Done)
    if as_json:
        output.print_json({"path": target.shown(), "frozen": False})
    else:
        click.echo(f"OK, {target.shown()} is no longer frozen")
