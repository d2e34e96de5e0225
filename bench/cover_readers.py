"""A reader that opens files, again and again, until its standard input ends: `python -m
bench.cover_readers SPEC.json`. Every open is timed, every byte is compared.

It prints `ready` after its first file and, at its end, one JSON `Opened`. Nothing of an open is
repeated after an error: what a program would see is recorded.
"""

from __future__ import annotations

import mmap
import os
import random
import select
import statistics
import sys
import time
from pathlib import Path

import msgspec
import xxhash

MAX_WRONG = 20
BY_PATH, BY_DIRECTORY, BY_CWD, BY_MAP = "path", "directory", "working directory", "map"


class Spec(msgspec.Struct):
    """`files`: (path below `root`, checksum)."""

    kind: str
    root: str
    files: list[tuple[str, str]]
    seed: int
    pace_s: float = 0.0


class Opened(msgspec.Struct):
    """`wrong`: wrong bytes and errors."""

    kind: str = ""
    opens: int = 0
    median_s: float = 0.0
    longest_s: float = 0.0
    wrong: list[str] = msgspec.field(default_factory=list)


class Opener:
    """Opens files in one way."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._random = random.Random(spec.seed)
        self._directory: int | None = None
        if spec.kind == BY_DIRECTORY:
            self._directory = os.open(spec.root, os.O_PATH | os.O_DIRECTORY)
        elif spec.kind == BY_CWD:
            os.chdir(spec.root)
        self._maps = [self._mapped(*file) for file in spec.files[:50] if spec.kind == BY_MAP]
        self.took_s: list[float] = []
        self.wrong: list[str] = []

    def _mapped(self, name: str, checksum: str) -> tuple[mmap.mmap, str, str]:
        with open(os.path.join(self._spec.root, name), "rb", buffering=0) as file:
            return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), name, checksum

    def step(self) -> None:
        if self._maps:
            view, name, checksum = self._random.choice(self._maps)
            began_s = time.perf_counter()
            data = view[:]
            self.took_s.append(time.perf_counter() - began_s)
        else:
            name, checksum = self._random.choice(self._spec.files)
            data = self._read(name)
        if xxhash.xxh3_64_hexdigest(data) != checksum and len(self.wrong) < MAX_WRONG:
            self.wrong.append(f"{name}: wrong bytes")

    def _read(self, name: str) -> bytes:
        by_name = self._spec.kind in (BY_DIRECTORY, BY_CWD)
        path = name if by_name else os.path.join(self._spec.root, name)
        began_s = time.perf_counter()
        fd = os.open(path, os.O_RDONLY, dir_fd=self._directory)
        self.took_s.append(time.perf_counter() - began_s)
        with open(fd, "rb", buffering=0) as file:
            return file.read()


def run(spec: Spec) -> Opened:
    opener = Opener(spec)
    opener.step()
    print("ready", flush=True)
    while not select.select([0], [], [], spec.pace_s)[0]:
        try:
            opener.step()
        except OSError as err:
            if len(opener.wrong) < MAX_WRONG:
                opener.wrong.append(f"{type(err).__name__}: {err}")
    took_s = opener.took_s
    return Opened(spec.kind, len(took_s), statistics.median(took_s), max(took_s), opener.wrong)


if __name__ == "__main__":
    loaded = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Spec)
    print(msgspec.json.encode(run(loaded)).decode(), flush=True)
