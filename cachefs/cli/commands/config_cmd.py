"""`cachefs config`: every setting, its value and, with --source, where the value is set."""

from __future__ import annotations

from typing import Any

import click

from cachefs.cli import output, settings
from cachefs.core.config import Config, Value, mask_password


@click.command("config")
@click.option("--source", "with_source", is_flag=True, help="Show where each value is set.")
@settings.command_options("config")
def command(with_source: bool, as_json: bool, chosen: Config) -> None:
    """Show every setting and its value ("-": decided when mounting).

    \b
    cachefs config --source
    """
    if as_json:
        output.print_json({name: _document(value) for name, value in chosen.values.items()})
        return
    rows = [[name, value.text(), value.source] for name, value in chosen.values.items()]
    for line in output.columns(rows if with_source else [row[:2] for row in rows]):
        click.echo(line)


def _document(value: Value) -> dict[str, Any]:
    shown = mask_password(value.value) if isinstance(value.value, str) else value.value
    return {"value": shown, "source": value.source}
