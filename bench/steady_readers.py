"""A reader of one kind that runs until its standard input ends: `python -m bench.steady_readers
SPEC.json`. Every byte is compared with the origin's, every operation is timed.

It prints one JSON `Record`. Times are those of CLOCK_MONOTONIC, which all processes share.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import xxhash

SLOW_S = 0.001
MAX_SLOW = 50_000
MAX_WRONG = 20
PACE_S = 0.002  # between two operations, as a reader that also computes


class Spec(msgspec.Struct):
    """`root`: the mount; `source`: the origin's folder. `kind`: see `KINDS`."""

    kind: str
    root: str
    source: str
    checksums: str
    seed: int = 1
    pace_s: float = PACE_S
    slow_s: float = SLOW_S


class Record(msgspec.Struct):
    """`slow`: (start, duration), s, of operations longer than `slow_s`. `wrong`: wrong bytes and
    errors."""

    kind: str = ""
    operations: int = 0
    worst_s: float = 0.0
    slow: list[tuple[float, float]] = msgspec.field(default_factory=list)
    wrong: list[str] = msgspec.field(default_factory=list)


class Reader:
    """The base of all kinds."""

    def __init__(self, spec: Spec) -> None:
        self.root = spec.root
        self.source = spec.source
        self.random = random.Random(spec.seed)
        self.checksums: dict[str, str] = json.loads(Path(spec.checksums).read_text())
        self.record = Record(spec.kind)
        self.slow_s = spec.slow_s

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Times the operations on the mount, and nothing else."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            took_s = time.monotonic() - began_s
            self.record.operations += 1
            self.record.worst_s = max(self.record.worst_s, took_s)
            if took_s > self.slow_s and len(self.record.slow) < MAX_SLOW:
                self.record.slow.append((began_s, took_s))

    def wrong(self, what: str) -> None:
        if len(self.record.wrong) < MAX_WRONG:
            self.record.wrong.append(what)

    def names(self, folder: str) -> list[str]:
        return [name for name in self.checksums if name.startswith(folder + "/")]

    def place(self, size_bytes: int, length_bytes: int) -> int:
        return self.random.randrange(max(1, size_bytes - length_bytes + 1))


Step = Callable[[], None]


def pieces(reader: Reader, name: str, length_bytes: int, *, keep: bool) -> Step:
    """Reads at random offsets of an open file; without `keep` the kernel drops the pages."""
    fd = os.open(os.path.join(reader.root, name), os.O_RDONLY)
    original = os.open(os.path.join(reader.source, name), os.O_RDONLY)
    size = os.fstat(original).st_size

    def step() -> None:
        at = reader.place(size, length_bytes)
        with reader.timed():
            piece = os.pread(fd, length_bytes, at)
        if piece != os.pread(original, length_bytes, at):
            reader.wrong(f"{name} at {at}")
        if not keep:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    return step


def mapped(reader: Reader, name: str, length_bytes: int) -> Step:
    """Copies pieces out of a map."""
    original = os.open(os.path.join(reader.source, name), os.O_RDONLY)
    with open(os.path.join(reader.root, name), "rb", buffering=0) as file:
        memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)

    def step() -> None:
        at = reader.place(len(memory), length_bytes)
        with reader.timed():
            piece = memory[at : at + length_bytes]
        if piece != os.pread(original, length_bytes, at):
            reader.wrong(f"{name}, mapped, at {at}")

    return step


def whole_files(reader: Reader, folder: str, chunk_bytes: int = 1 << 20) -> Step:
    """Opens a random file, reads it to its end, closes it."""
    names = reader.names(folder)

    def step() -> None:
        name, digest = reader.random.choice(names), xxhash.xxh3_64()
        with reader.timed():
            fd = os.open(os.path.join(reader.root, name), os.O_RDONLY)
        try:
            piece = b"?"
            while piece:
                with reader.timed():
                    piece = os.read(fd, chunk_bytes)
                digest.update(piece)
        finally:
            os.close(fd)
        if digest.hexdigest() != reader.checksums[name]:
            reader.wrong(name)

    return step


def stats(reader: Reader) -> Step:
    """Stats a file and a missing name."""
    names = reader.names("small")

    def step() -> None:
        name = reader.random.choice(names)
        with reader.timed():
            size = os.stat(os.path.join(reader.root, name)).st_size
        if size != os.stat(os.path.join(reader.source, name)).st_size:
            reader.wrong(f"{name} has {size} bytes")
        with reader.timed():
            there = os.path.exists(os.path.join(reader.root, f"no-{reader.random.random()}"))
        if there:
            reader.wrong("a name that is nowhere exists")

    return step


def listings(reader: Reader) -> Step:
    """Lists all names of a folder, with a stat of each."""
    folders: dict[str, set[str]] = {}
    for name in (*reader.names("small"), *reader.names("cold_small")):
        folder, _, base = name.rpartition("/")
        folders.setdefault(folder, set()).add(base)
    names = list(folders)

    def step() -> None:
        folder = reader.random.choice(names)
        with reader.timed():
            found = {e.name: e.stat() for e in os.scandir(os.path.join(reader.root, folder))}
        if set(found) != folders[folder]:
            reader.wrong(f"{folder} has {len(found)} names")

    return step


KINDS: dict[str, Callable[[Reader], Step]] = {
    "open warm file, read": lambda r: pieces(r, "big/data.bin", 128 << 10, keep=True),
    "open warm file, mapped": lambda r: mapped(r, "big/data.bin", 64 << 10),
    "open + read + close, warm": lambda r: whole_files(r, "small"),
    "open + read + close, cold": lambda r: whole_files(r, "cold_small"),
    "cold read": lambda r: pieces(r, "cold/data.bin", 128 << 10, keep=False),
    "big file, whole": lambda r: whole_files(r, "big"),
    "stat": stats,
    "listing": listings,
}


def go_on(reader: Reader, step: Step, pace_s: float) -> Record:
    """Runs steps until standard input ends. An error of the mount is recorded, and is no end."""
    while not select.select([0], [], [], pace_s)[0]:
        try:
            step()
        except OSError as err:
            reader.wrong(f"{type(err).__name__}: {err}")
    return reader.record


def main(path: str) -> None:
    spec = msgspec.json.decode(Path(path).read_bytes(), type=Spec)
    reader = Reader(spec)
    step = KINDS[spec.kind](reader)
    print("ready", flush=True)
    print(msgspec.json.encode(go_on(reader, step, spec.pace_s)).decode(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
