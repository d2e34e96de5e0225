"""`cachefs free`: drop cached bytes; names, and the objects at the origin, stay."""

from __future__ import annotations

from typing import Any

import click

from cachefs.cli import output, settings
from cachefs.cli.session import attached, find_target
from cachefs.core import messages as m
from cachefs.core.units import format_size


@click.command("free")
@click.argument("path")
@settings.setting_flags("free")
@output.json_flag
@output.debug_flag
def command(path: str, as_json: bool, debug: bool, config_file: str | None, **flags: Any) -> None:
    """Drop what is cached of PATH and everything below it. Nothing is deleted at the origin."""
    target = find_target(path, settings.state_home(settings.load_settings(flags, config_file)))
    with attached(target.record) as session:
        freed = session.call(m.Free(session.namespace, target.in_namespace), m.Freed)
    if as_json:
        facts = {"files": freed.files, "bytes": freed.bytes, "busy_files": freed.busy_files}
        output.print_json(facts)
    else:
        click.echo(_line(freed))


def _line(freed: m.Freed) -> str:
    files = "1 file" if freed.files == 1 else f"{freed.files} files"
    line = f"freed {format_size(freed.bytes)} of {files}"
    if freed.busy_files:
        line += f"; {freed.busy_files} still open, their bytes go with the last close"
    return line
