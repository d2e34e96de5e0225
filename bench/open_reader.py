"""Readers of many files that take as little time as a program can: `bench/open_reader.c`."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bench.mounts import BenchFailed

LIMIT_S = 300.0


@dataclass(frozen=True)
class Pass:
    """One pass of all processes."""

    files: int
    bytes: int
    errors: int
    wall_s: float
    cpu_s: float

    @property
    def files_per_s(self) -> float:
        return self.files / self.wall_s


class Reader:
    """Compiles the program into a folder. Raises BenchFailed without a compiler."""

    def __init__(self, root: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            raise BenchFailed("no C compiler for the readers")
        self._root = root
        self._program = root / "open_reader"
        source = Path(__file__).with_name("open_reader.c")
        subprocess.run([compiler, "-O2", "-o", self._program, source], check=True, timeout=LIMIT_S)

    def list_of(self, name: str, paths: Iterable[Path]) -> Path:
        """Writes the list of files to read."""
        found = self._root / f"list-{name}"
        found.write_text("".join(f"{path}\n" for path in paths))
        return found

    def read(self, names: Path, processes: int, seconds: float, what: str) -> Pass:
        """See the head of the program."""
        command = [str(self._program), str(names), str(processes), str(seconds), what]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
        if not done.stdout:
            raise BenchFailed(f"the readers failed: {done.stderr.strip() or done.returncode}")
        return Pass(**json.loads(done.stdout))
