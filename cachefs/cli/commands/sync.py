"""`cachefs sync`: compares names with their origin now, and lists the changes."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, Final

import click

from cachefs.cli import output, settings
from cachefs.cli.job_servers import START_S, Finder, Place, insist
from cachefs.core import messages as m
from cachefs.core.config import Config
from cachefs.core.errors import CacheFSError, NotFound
from cachefs.core.syncs import Change, ChangeKind, SyncStatus
from cachefs.core.units import format_duration

RUNNING: Final = "running"
DONE: Final = "done"
FAILED_STATE: Final = "failed"
FIRST_LOOK_S: Final = 0.02
LOOK_S: Final = 0.25
LINE_EVERY_S: Final = 10.0
FAILED: Final = 1
_SIGNS: Final = {ChangeKind.ADDED: "+", ChangeKind.REPLACED: "~", ChangeKind.GONE: "-"}


@click.command("sync")
@click.argument("path")
@click.option("-R", "--recursive", is_flag=True, help="PATH and everything below it.")
@click.option("--dry-run", is_flag=True, help="List the changes without applying them.")
@settings.command_options("sync")
def command(path: str, recursive: bool, dry_run: bool, as_json: bool, chosen: Config) -> int:
    """Compare PATH (a directory: the names in it) with its origin now, whatever its age, and apply
    the changes. Prints a line for each name that was added (+), replaced (~) or is gone (-). Reads
    only listings. The cached data of a changed file is dropped; the next read fetches it.

    \b
    cachefs sync /mnt/data/train
    cachefs sync -R --dry-run cachefs://master:19998/imagenet

    Exit code 1 if a directory could not be listed; changes of the others are applied. An interrupt
    stops the sync; changes found before it stay applied."""
    with Finder(chosen) as finder:
        place, inside = finder.find(path)
        call = m.StartSync(place.namespace, inside.strip(b"/"), recursive, dry_run)
        started = insist(lambda: place.call(call, m.SyncReply), _say_silent, START_S)
        view = make_view(place, as_json)
        try:
            ended = follow(place, started, view)
        finally:
            view.close()
        return report(ended, as_json, place, inside)


def _say_silent(err: CacheFSError) -> None:
    click.echo(f"cachefs: no answer, retrying: {err.cause}", err=True)


def follow(place: Place, started: m.SyncReply, view: View) -> SyncStatus:
    """Shows a sync until it ends, and returns its last state. An interrupt stops the sync. Raises
    NotFound if its server was restarted."""
    sync, seen, reply, pause_s = started.sync.sync, 0, started, FIRST_LOOK_S
    try:
        while True:
            seen += len(reply.changes)
            view.show(reply)
            if reply.sync.state != RUNNING and not reply.changes:
                return reply.sync
            if not reply.changes:
                time.sleep(pause_s)
                pause_s = min(LOOK_S, pause_s * 1.5)
            reply = _next(place, sync, seen)
    except KeyboardInterrupt:
        place.call(m.GetSync(place.namespace, sync, seen, stop=True), m.SyncReply)
        raise


def _next(place: Place, sync: int, seen: int) -> m.SyncReply:
    call = m.GetSync(place.namespace, sync, seen)
    try:
        return insist(lambda: place.call(call, m.SyncReply), _say_silent)
    except NotFound as err:
        raise NotFound(
            "the server that ran the sync has restarted", remedy="start it again"
        ) from err


def counts(sync: SyncStatus) -> str:
    """Returns `12 directories, 3,400 names: 2 added, 1 replaced, 0 gone`."""
    compared = f"{_many(sync.directories, 'director', 'y', 'ies')}, {_many(sync.names, 'name')}"
    return f"{compared}: {sync.added:,} added, {sync.replaced:,} replaced, {sync.gone:,} gone"


def _many(count: int, word: str, one: str = "", more: str = "s") -> str:
    return f"{count:,} {word}{one if count == 1 else more}"


def summary(sync: SyncStatus) -> str:
    verb = {DONE: "OK, compared", "stopped": "STOPPED: compared"}.get(
        sync.state, "FAILED: compared"
    )
    verb = "FAILED: compared" if sync.errors else verb
    text = f"{verb} {counts(sync)}; {format_duration(round(sync.elapsed_s, 3))}"
    text += ", nothing was changed here (--dry-run)" if sync.dry_run else ""
    text += f", {sync.errors:,} could not be listed" if sync.errors else ""
    return "; ".join(part for part in (text, sync.message) if part)


def document(sync: SyncStatus) -> dict[str, Any]:
    names = ("sync", "state", "recursive", "dry_run", "directories", "names")
    facts = {name: getattr(sync, name) for name in names}
    facts |= {name: getattr(sync, name) for name in ("added", "replaced", "gone", "errors")}
    return facts | {"elapsed_s": round(sync.elapsed_s, 3), "message": sync.message}


def report(sync: SyncStatus, as_json: bool, place: Place, path: bytes) -> int:
    """Prints the closing line and returns the exit code. `path`: what was compared."""
    if as_json:
        output.print_json_line(document(sync))
    elif sync.state == FAILED_STATE and not sync.names:
        in_namespace = f"/{output.text_of(path.strip(b'/'))}: "
        is_path = sync.message.startswith(in_namespace)
        cause = sync.message.removeprefix(in_namespace)
        click.echo(f"cachefs: {f'{place.shown(path)}: {cause}' if is_path else cause}", err=True)
    else:
        click.echo(summary(sync))
    return 0 if sync.state == DONE and not sync.errors else FAILED


class View:
    """Prints the changes, and progress on standard error every 10 s."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._next_s = LINE_EVERY_S

    def show(self, reply: m.SyncReply) -> None:
        self._print(reply.changes)
        if reply.sync.state == RUNNING and reply.sync.elapsed_s >= self._next_s:
            self._next_s = reply.sync.elapsed_s + LINE_EVERY_S
            print(counts(reply.sync), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Restores the terminal; idempotent."""

    def _print(self, changes: Sequence[Change]) -> None:
        for change in changes:
            click.echo(self._line(change))

    def _line(self, change: Change) -> str:
        slash = "/" if change.is_directory else ""
        return f"{_SIGNS[change.kind]} {self._place.shown(change.path)}{slash}"


class JsonView(View):
    """Prints a JSON line for each change, and one of progress every second."""

    def show(self, reply: m.SyncReply) -> None:
        for one in reply.changes:
            facts: dict[str, Any] = {"change": one.kind.value, "path": self._place.shown(one.path)}
            output.print_json_line(facts | {"is_directory": one.is_directory})
        if reply.sync.state == RUNNING and reply.sync.elapsed_s >= self._next_s:
            self._next_s = reply.sync.elapsed_s + 1.0
            output.print_json_line(document(reply.sync))

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._next_s = 1.0


class Terminal(View):
    """Prints the changes, and a live line of progress below them."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._live = output.live()
        self._live.start()

    def show(self, reply: m.SyncReply) -> None:
        from rich.text import Text

        for change in reply.changes:
            if sys.stdout.isatty():  # the terminal of the live line
                self._live.console.print(Text(self._line(change)), soft_wrap=True)
            else:
                click.echo(self._line(change))
        self._live.update(Text(f"compared {counts(reply.sync)}", no_wrap=True), refresh=True)

    def close(self) -> None:
        self._live.stop()


def make_view(place: Place, as_json: bool) -> View:
    if as_json:
        return JsonView(place)
    return Terminal(place) if sys.stderr.isatty() else View(place)
