"""The last commands of a machine and what they said, for the report of a test that fails: only the
times tell whether something was looked at before it had come about."""

from __future__ import annotations

import collections
import datetime
import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Final

MOST: Final = 12  # commands
SHOWN: Final = 600  # characters of each output

Done = subprocess.CompletedProcess[str]


class Transcript:
    """Commands in the order of their starts. One without an end did not end in time, or runs."""

    def __init__(self) -> None:
        self._entries: collections.deque[list[str]] = collections.deque(maxlen=MOST)

    def of(self, words: Sequence[str], run: Callable[[], Done]) -> Done:
        """Runs a command, and notes it. Raises what it raises."""
        began = datetime.datetime.now().isoformat(" ", "milliseconds")
        entry = [f"{began} {shlex.join(words)}"]
        self._entries.append(entry)
        since_s = time.monotonic()
        done = run()
        entry.append(f"    {done.returncode} after {time.monotonic() - since_s:.2f} s")
        entry += [f"    {end(text)}" for text in (done.stdout, done.stderr) if text]
        return done

    def __str__(self) -> str:
        return "\n".join(line for entry in self._entries for line in entry)


def end(text: str) -> str:
    """Returns the end of an output, indented."""
    shown = text.strip().replace("\n", "\n    ")
    return shown if len(shown) <= SHOWN else f"[...]{shown[-SHOWN:]}"
