"""`cachefs views`: the directories that are frozen, or that a policy has covered, and whether the
kernel alone shows them."""

from __future__ import annotations

import click

from cachefs.cli import output, settings, view_calls
from cachefs.cli.owners import all_records
from cachefs.cli.session import Target, attached
from cachefs.core.config import Config
from cachefs.core.errors import CacheFSError
from cachefs.core.messages import ViewStatus
from cachefs.core.mountinfo import read_mounts
from cachefs.core.printable import printable
from cachefs.core.units import format_size

_HEAD = ["path", "state", "since", "files", "size", "mounts", "by", "reason"]


@click.command("views")
@click.argument("path", required=False)
@settings.command_options("views")
def command(path: str | None, as_json: bool, chosen: Config) -> int:
    """List the frozen and the covered directories of the mount of PATH, or of all mounts. Exit code
    3 if the server of one of them did not answer.

    \b
    cachefs views
    cachefs views /mnt/data
    """
    silent: list[str] = []
    if path is not None:
        with view_calls.opened(path, chosen) as (session, target):
            found = [(view, target) for view in view_calls.views_of(session)]
    else:
        found = _everywhere(chosen, silent)
    _print(found, as_json)
    for line in silent:
        output.warn(line)
    return output.INCOMPLETE if silent else 0


def _everywhere(chosen: Config, silent: list[str]) -> list[tuple[ViewStatus, Target]]:
    """Returns the views of all mounts. Adds to `silent` why a mount's are not known."""
    found = []
    for record in all_records(read_mounts().ours(), settings.state_home(chosen)):
        try:
            with attached(record) as session:
                target = Target(record, b"")
                found += [(view, target) for view in view_calls.views_of(session)]
        except CacheFSError as err:
            silent.append(f"{record.mountpoint}: {err.cause}")
    return found


def _print(found: list[tuple[ViewStatus, Target]], as_json: bool) -> None:
    if as_json:
        return output.print_json([view_calls.document(*one) for one in found])
    if not found:
        return click.echo("no directory is covered; `cachefs freeze DIR` freezes one")
    rows = [
        [
            view_calls.document(view, target)["path"],
            view.state,
            view_calls.since(view),
            f"{view.files:,}",
            format_size(view.size_bytes),
            str(view.covers),
            f"view={view.policy}" if view.policy else "freeze",
            printable(view.reason),
        ]
        for view, target in found
    ]
    for line in output.columns([_HEAD, *rows], right=(3, 4, 5)):
        click.echo(line.rstrip())
