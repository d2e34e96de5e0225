"""Processes that read a mount and compare every byte with its source, while a test ends servers."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

KINDS: Final = ("open", "hold", "map", "walk", "stat")
_PROGRAM: Final = Path(__file__).parents[1] / "integration" / "reader.py"
END_S: Final = 60.0


class MountReaders:
    """Readers of a mount, see `tests/integration/reader.py`; `stop` is the path that ends them.
    `prefix`: what runs them, for another user or mount namespace."""

    def __init__(self, path: Path, source: Path, stop: Path, prefix: Sequence[str] = ()) -> None:
        self._path, self._source, self._stop = path, source, stop
        self._prefix = prefix
        self.popens: list[subprocess.Popen[str]] = []

    def start(self, rng: random.Random, kinds: tuple[str, ...] = KINDS) -> None:
        """Starts one of each kind, and waits until each has read something."""
        for kind in kinds:
            arguments = [kind, self._path, self._source, self._stop, rng.randrange(1 << 30)]
            command = [*self._prefix, sys.executable, "-I", _PROGRAM, *arguments]
            self.popens.append(
                subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)
            )
        for reader in self.popens:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "reading\n"

    def finish(self) -> dict[str, float]:
        """Ends them. Every reader was right all the time, and read something. Returns the longest
        round of each kind, in seconds."""
        self._stop.touch()
        longest_s = {}
        for reader in self.popens:
            assert isinstance(reader.args, list)
            kind = reader.args[-5]
            out, _ = reader.communicate(timeout=END_S)
            said = json.loads(out)
            print(kind, said)
            assert said["errors"] == [], kind
            assert said["rounds"] > 0, kind
            longest_s[kind] = said["longest_s"]
        return longest_s

    def clean_up(self) -> None:
        """Ends what is left of them."""
        self._stop.touch()
        for reader in self.popens:
            with contextlib.suppress(subprocess.TimeoutExpired):
                reader.wait(5)
            reader.kill()
            reader.wait(END_S)
            if reader.stdout is not None:
                reader.stdout.close()
