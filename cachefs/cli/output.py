"""The output of commands: JSON for programs, aligned columns for people."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from cachefs.core import units
from cachefs.core.printable import printable

if TYPE_CHECKING:
    from rich.live import Live

# The exit code of a command whose result lacks the data of workers that did not answer.
INCOMPLETE: Final = 3
WAIT_S: Final = 2.0  # without a sign of life
SHOWN_WORKERS: Final = 5  # that a warning names

json_flag = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
DEBUG_HELP: Final = "Show the traceback of a failure."
# `cachefs.cli.main` reads it: it counts for failures before the command runs, too.
debug_flag = click.option("--debug", is_flag=True, expose_value=False, help=DEBUG_HELP)


def print_json(value: Any) -> None:
    """Prints one JSON document, indented. It must not contain bytes (see `text_of`)."""
    click.echo(json.dumps(value, indent=2, sort_keys=False))


def print_json_array(values: Iterable[Any]) -> None:
    """Prints one JSON array, a line for each value as it comes: all of them may exceed the
    memory."""
    separator = "["
    for value in values:
        click.echo(f"{separator}\n{json.dumps(value)}", nl=False)
        separator = ","
    click.echo("[]" if separator == "[" else "\n]")


def print_json_line(value: Any) -> None:
    """Prints one JSON document on one line, and flushes it."""
    click.echo(json.dumps(value))
    sys.stdout.flush()


def discard() -> None:
    """Discards standard output from now on: its reader has closed it, and the flush at exit must
    not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def live() -> Live:
    """Returns a live display on standard error, erased at its end. Imports rich only now."""
    from rich.console import Console
    from rich.live import Live

    return Live(
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )


@contextlib.contextmanager
def announced(text: str) -> Iterator[None]:
    """Prints a line if its block takes longer than `WAIT_S` and standard error is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    timer = threading.Timer(WAIT_S, click.echo, (f"cachefs: {printable(text)}",), {"err": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def warn(text: str) -> None:
    """Prints a warning."""
    click.echo(f"cachefs: warning: {printable(text)}", err=True)


def warn_no_answer(lines: Sequence[str]) -> int:
    """Prints the workers that did not answer, as the end of a command's output.

    `lines`: `ID: why` of each such worker. Returns the exit code: INCOMPLETE if any, else 0.
    """
    by_cause: dict[str, list[str]] = {}
    for line in lines:
        worker, _, why = line.partition(": ")
        by_cause.setdefault(why, []).append(worker[:8])
    for why, workers in by_cause.items():
        warn(f"{_named(workers)}: {why}")
    if not lines:
        return 0
    who = "this worker has" if len(lines) == 1 else f"these {len(lines)} workers have"
    click.echo(f"cachefs: the result lacks what {who}", err=True)
    return INCOMPLETE


def _named(workers: Sequence[str]) -> str:
    """Returns `worker 1a2b`, or `12 workers (1a2b, 3c4d, …)`."""
    if len(workers) == 1:
        return f"worker {workers[0]}"
    rest = ["…"] if len(workers) > SHOWN_WORKERS else []
    return f"{len(workers)} workers ({', '.join([*workers[:SHOWN_WORKERS], *rest])})"


def text_of(name: bytes) -> str:
    """Returns a name for a terminal or JSON: UTF-8, other bytes as \\xNN, no control characters."""
    return printable(name.decode("utf-8", "backslashreplace"))


def time_of(mtime_ns: int) -> str:
    """Returns the local time, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(mtime_ns // 1_000_000_000))


def percent_of(part: float, whole: float) -> str:
    """Returns `37%`. Only a whole is 100 %, and only an empty part is 0 %."""
    if part >= whole:
        return "100%"
    share = part / whole
    return f"{min(99, max(1, round(share * 100))) if part else 0}%"


def tree_lines(value: Any, indent: int = 0) -> list[str]:
    """Returns a tree of plain values as lines: `*_bytes` as sizes, `*_s` as durations."""
    lines: list[str] = []
    pad = "  " * indent
    for name, item in value.items():
        if isinstance(item, dict):
            lines += [f"{pad}{name}:", *tree_lines(item, indent + 1)]
        elif isinstance(item, list) and item and isinstance(item[0], dict):
            for entry in item:
                lines += [f"{pad}{name}:", *tree_lines(entry, indent + 1)]
        else:
            lines.append(f"{pad}{name}: {_scalar(name, item)}")
    return lines


def _scalar(name: str, item: Any) -> str:
    number = isinstance(item, (int, float)) and not isinstance(item, bool)
    if number and name.endswith(("_bytes", "bytes")):
        return units.format_size(item)
    if number and name.endswith("_s"):
        return units.format_duration(item)
    if isinstance(item, bool):
        return "yes" if item else "no"
    if isinstance(item, list):
        return ", ".join(str(part) for part in item) or "-"
    return str(item)


def columns(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Returns aligned lines; the columns in `right` are right-aligned, the last is not padded."""
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    last = len(widths) - 1

    def cell(i: int, text: str) -> str:
        return text.rjust(widths[i]) if i in right else text if i == last else text.ljust(widths[i])

    return ["  ".join(cell(i, text) for i, text in enumerate(row)) for row in rows]
