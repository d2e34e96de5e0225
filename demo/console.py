"""The output of the demo: commands, their output, and tables of rates."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from demo.readers import Rates
from demo.sandbox import MARK

COMMAND_LIMIT_S = 60.0
CACHEFS = str(Path(sys.executable).parent / "cachefs")
WIDTH = 42


class DemoFailed(Exception):
    """A check of the demo failed; the text is the reason."""


def expect(holds: bool, failure: str) -> None:
    if not holds:
        raise DemoFailed(failure)


def say(text: str = "") -> None:
    print(text, flush=True)


def short(text: str) -> str:
    """Returns the text with the demo's folder as $D."""
    return text.replace(os.environ[MARK], "$D")


def cachefs(*arguments: str, quiet: bool = False) -> str:
    """Prints a command, runs it, and prints its output."""
    if not quiet:
        say(short(f"\n$ cachefs {' '.join(arguments)}"))
    done = subprocess.run(
        [CACHEFS, *arguments],
        text=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=COMMAND_LIMIT_S,
    )
    if done.returncode:
        raise DemoFailed(f"cachefs {arguments[0]}: {done.stderr.strip() or done.stdout.strip()}")
    if not quiet:
        say(short((done.stdout + done.stderr).rstrip()))
    return done.stdout


def header() -> None:
    say(f"{'':{WIDTH}}{'images':>12} {'images':>13} {'shard':>14} {'from origin':>13}")


def row(name: str, rates: Rates, origin_bytes: int | None = None) -> None:
    """Prints one line of the table."""
    origin = "" if origin_bytes is None else f" {origin_bytes / 1e6:10.1f} MB"
    say(
        f"{name:{WIDTH}}{rates.files_per_s:9,.0f} /s {rates.small_bytes_per_s / 1e6:8,.0f} MB/s"
        f" {rates.shard_bytes_per_s / 1e6:9,.0f} MB/s{origin}"
    )
