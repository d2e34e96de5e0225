"""`cachefs load`: bring files into the cache; with --wait, show it and say what failed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeVar

import click

from cachefs.cli import output, settings
from cachefs.cli.mounts import read_mounts
from cachefs.cli.progress import Total, View, make_view, summary
from cachefs.cli.session import attached, find_target
from cachefs.core import messages as m
from cachefs.core.errors import BadConfig
from cachefs.core.model import NamespaceId
from cachefs.launcher.state import MountRecord, StateHome

POLL_S: Final = 0.2
PATHS_BYTES: Final = m.MAX_FRAME_BYTES // 2  # of one request
FAILED: Final = 1
_T = TypeVar("_T", bound=m.Message)


class Asker(Protocol):
    """What a load needs of a session."""

    @property
    def namespace(self) -> NamespaceId: ...

    def call(self, body: m.Message, answer: type[_T]) -> _T: ...


@click.command("load")
@click.argument("paths", nargs=-1, metavar="PATH|GLOB...")
@click.option("--files-from", metavar="FILE", help="Read paths from FILE, one a line (-: stdin).")
@click.option("--wait", is_flag=True, help="Wait for the end; exit code 1 if anything failed.")
@settings.setting_flags("load")
@output.json_flag
@output.debug_flag
def command(
    paths: tuple[str, ...],
    files_from: str | None,
    wait: bool,
    as_json: bool,
    debug: bool,
    config_file: str | None,
    **flags: Any,
) -> int:
    """Bring everything at or below each PATH (or what a quoted GLOB matches) into the cache."""
    home = settings.state_home(settings.load_settings(flags, config_file))
    wanted = [*paths, *(read_list(files_from) if files_from else [])]
    if not wanted:
        raise click.UsageError("nothing to load: give a PATH, or --files-from FILE")
    by_mount = group_targets(wanted, home)
    if wait and len(by_mount) > 1:
        raise BadConfig("these paths are in several mounts", remedy="use one command for each")
    codes = [_load(record, below, wait, as_json) for record, below in by_mount]
    return max(codes)


def read_list(name: str) -> list[str]:
    """The lines of a file, empty ones left out. Raises BadConfig."""
    try:
        if name == "-":
            return [line for line in sys.stdin.read().splitlines() if line]
        with open(name, encoding="utf-8", errors="surrogateescape") as file:
            return [line for line in file.read().splitlines() if line]
    except OSError as err:
        raise BadConfig(f"--files-from: {err.strerror}", path=name) from err


def group_targets(paths: Sequence[str], home: StateHome) -> list[tuple[MountRecord, list[bytes]]]:
    """The paths of each mount, in the order given. Raises NotFound."""
    table = read_mounts()
    groups: dict[str, tuple[MountRecord, list[bytes]]] = {}
    for path in paths:
        target = find_target(path, home, table)
        group = groups.setdefault(target.record.mountpoint, (target.record, []))
        group[1].append(target.in_namespace)
    return list(groups.values())


def _load(record: MountRecord, paths: Sequence[bytes], wait: bool, as_json: bool) -> int:
    with attached(record) as session:
        loads = start_loads(session, paths)
        if not wait:
            _say_started(loads, record, as_json)
            return 0
        view = make_view(as_json)
        try:
            total = follow(session, loads, view, time.sleep)
        except KeyboardInterrupt:
            print("cachefs: the load goes on; `cachefs status` shows it", file=sys.stderr)
            raise
        finally:
            view.close()
        return report(session, loads, total, as_json)


def start_loads(session: Asker, paths: Sequence[bytes]) -> list[int]:
    """Ask for the paths, in as few requests as frames allow; the numbers of the loads."""
    return [
        session.call(m.Load(session.namespace, part), m.LoadStarted).load for part in batches(paths)
    ]


def batches(paths: Sequence[bytes], limit_bytes: int = PATHS_BYTES) -> Iterator[list[bytes]]:
    """The paths in parts that fit one request each. Raises BadConfig for one that cannot."""
    part: list[bytes] = []
    size_bytes = 0
    for path in paths:
        cost_bytes = len(path) + 5  # of its msgpack header
        if cost_bytes > limit_bytes:
            raise BadConfig("the path is too long")
        if part and size_bytes + cost_bytes > limit_bytes:
            yield part
            part, size_bytes = [], 0
        part.append(path)
        size_bytes += cost_bytes
    yield part


def follow(
    session: Asker,
    loads: Sequence[int],
    view: View,
    pause: Callable[[float], None],
) -> Total:
    """Show the loads until all have ended; their sum at the end."""
    while True:
        states = [session.call(m.LoadStatus(load), m.LoadProgress) for load in loads]
        total = Total.of(states)
        view.show(total)
        if not total.running:
            return total
        pause(POLL_S)


def report(session: Asker, loads: Sequence[int], total: Total, as_json: bool) -> int:
    """Print how it ended, every failed file with its cause; the exit code."""
    failures = [failure for load in loads for failure in all_failures(session, load)]
    if as_json:
        named = [{"path": output.text_of(path), "cause": cause} for path, cause in failures]
        output.print_json_line({**total.document(), "failures": named})
    else:
        for path, cause in failures:
            print(f"cachefs: {failure_line(path, cause)}", file=sys.stderr)
        if total.files_failed > len(failures):
            more = total.files_failed - len(failures)
            print(f"cachefs: and {more} more failed", file=sys.stderr)
        click.echo(summary(total))
    return 0 if total.succeeded else FAILED


def failure_line(path: bytes, cause: str) -> str:
    """The path once, and the cause."""
    shown = output.text_of(path)
    return cause if cause.startswith(f"{shown}:") else f"{shown}: {cause}"


def all_failures(session: Asker, load: int) -> Iterator[tuple[bytes, str]]:
    """Every failed file that the server still knows, page by page."""
    seen = 0
    while True:
        page = session.call(m.LoadStatus(load, seen), m.LoadProgress).failures
        if not page:
            return
        yield from page
        seen += len(page)


def _say_started(loads: Sequence[int], record: MountRecord, as_json: bool) -> None:
    if as_json:
        output.print_json_line({"mountpoint": record.mountpoint, "loads": list(loads)})
    else:
        numbers = ", ".join(str(load) for load in loads)
        click.echo(f"load {numbers} started; `cachefs status` shows it, --wait waits for its end")
