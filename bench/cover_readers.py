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
    """`wrong`: wrong bytes and errors. `longest_awake_s`: without the time in which the reader
    waited for a core. `covered`: opens of another device than the first one, and the longest of
    these."""

    kind: str = ""
    opens: int = 0
    median_s: float = 0.0
    longest_s: float = 0.0
    longest_awake_s: float = 0.0
    covered: int = 0
    longest_covered_awake_s: float = 0.0
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
        self._schedstat = os.open("/proc/self/schedstat", os.O_RDONLY)
        self._device = 0  # of the first file
        self.took_s: list[float] = []
        self.awake_s: list[float] = []
        self.covered_awake_s: list[float] = []
        self.wrong: list[str] = []

    def _waited_s(self) -> float:
        """Returns for how long this process has waited for a core so far."""
        return int(os.pread(self._schedstat, 100, 0).split()[1]) / 1e9

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
        waited_s, began_s = self._waited_s(), time.perf_counter()
        fd = os.open(path, os.O_RDONLY, dir_fd=self._directory)
        took_s = time.perf_counter() - began_s
        awake_s = max(0.0, took_s - (self._waited_s() - waited_s))
        self.took_s.append(took_s)
        self.awake_s.append(awake_s)
        device = os.fstat(fd).st_dev
        self._device = self._device or device
        if device != self._device:
            self.covered_awake_s.append(awake_s)
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
    covered_s = opener.covered_awake_s
    return Opened(
        spec.kind, len(took_s), statistics.median(took_s), max(took_s),
        max(opener.awake_s, default=0.0), len(covered_s), max(covered_s, default=0.0),
        opener.wrong,
    )  # fmt: skip


if __name__ == "__main__":
    loaded = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Spec)
    print(msgspec.json.encode(run(loaded)).decode(), flush=True)
