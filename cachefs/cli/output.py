"""How commands print: JSON for programs, plain aligned columns for people."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from cachefs.core import units

if TYPE_CHECKING:
    from rich.live import Live

# The exit code of a command whose result lacks what some workers have, as they did not answer.
INCOMPLETE: Final = 3
SHOWN_WORKERS: Final = 5  # that a warning names

json_flag = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
debug_flag = click.option("--debug", is_flag=True, help="Show the traceback of a failure.")


def print_json(value: Any) -> None:
    """One JSON document, indented; bytes in it must have been made text (`text_of`)."""
    click.echo(json.dumps(value, indent=2, sort_keys=False))


def print_json_line(value: Any) -> None:
    """One JSON document on one line, written at once."""
    click.echo(json.dumps(value))
    sys.stdout.flush()


def live() -> Live:
    """Lines on standard error that are drawn anew, and gone at the end. Imports rich only now."""
    from rich.console import Console
    from rich.live import Live

    return Live(
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )


def warn(text: str) -> None:
    """Prints a warning for people."""
    click.echo(f"cachefs: warning: {line_of(text)}", err=True)


def warn_of_silent(lines: Sequence[str]) -> int:
    """Prints who did not answer, as the last of a command's output, and returns its exit code.

    `lines`: `ID: why` of each worker that did not answer. The code is INCOMPLETE if there is any,
    else 0.
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
    """`worker 1a2b`, or `12 workers (1a2b, 3c4d, …)`."""
    if len(workers) == 1:
        return f"worker {workers[0]}"
    rest = ["…"] if len(workers) > SHOWN_WORKERS else []
    return f"{len(workers)} workers ({', '.join([*workers[:SHOWN_WORKERS], *rest])})"


def text_of(name: bytes) -> str:
    """A name for a terminal or JSON: UTF-8, other bytes as \\xNN, no control characters."""
    return line_of(name.decode("utf-8", "backslashreplace"))


def line_of(text: str) -> str:
    """Returns a text for a terminal, without control characters: another process wrote it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def time_of(mtime_ns: int) -> str:
    """Local time, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(mtime_ns // 1_000_000_000))


def percent_of(part: float, whole: float) -> str:
    """`37%`; never 100 % of what is not whole, nor 0 % of what is not empty."""
    if part >= whole:
        return "100%"
    share = part / whole
    return f"{min(99, max(1, round(share * 100))) if part else 0}%"


def tree_lines(value: Any, indent: int = 0) -> list[str]:
    """A tree of plain values for people: `*_bytes` as sizes, `*_s` as durations."""
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
    """Rows as aligned lines; the columns in `right` are right-aligned, the last is not padded."""
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    last = len(widths) - 1

    def cell(i: int, text: str) -> str:
        return text.rjust(widths[i]) if i in right else text if i == last else text.ljust(widths[i])

    return ["  ".join(cell(i, text) for i, text in enumerate(row)) for row in rows]
