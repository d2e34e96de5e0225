"""`cachefs version`."""

from __future__ import annotations

import platform

import click

import cachefs
from cachefs.cli import output
from cachefs.core.messages import PROTOCOL


@click.command("version")
@output.json_flag
def command(as_json: bool) -> None:
    """Show the version of cachefs."""
    if as_json:
        facts = {"version": cachefs.__version__, "protocol": PROTOCOL}
        facts |= {"python": platform.python_version(), "kernel": platform.release()}
        output.print_json(facts)
    else:
        click.echo(f"cachefs {cachefs.__version__}")
