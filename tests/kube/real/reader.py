"""A trainer: reads files with known bytes for some seconds, compares every byte, and writes one
line of JSON with what it saw. Standard library only: pods run it by `python -I`.

    reader.py write DIRECTORY              writes the files
    reader.py read DIRECTORY SECONDS       reads them, until SIGTERM or for these seconds

It first reads each file once, and then says so by an empty file at READY. From then on two threads
open small files in a random order, and one reads a file that stays open. A file's bytes follow from
its name, so that a reader needs no other copy of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

SMALL_FILES: Final = 400
SMALL_BYTES: Final = range(4_000, 60_000)
BIG: Final = "big"
PART_BYTES: Final = 1 << 20
BIG_PARTS: Final = 32
OPENERS: Final = 2
PAUSE_S: Final = 0.02  # after an error, and between parts: the machine is shared
OPEN_PAUSE_S: Final = 0.005
READY: Final = "/tmp/ready"
SLOW_S: Final = 0.02
KEPT_ERRORS: Final = 5
KEPT_SLOW: Final = 10_000


@dataclass
class Results:
    """What a reader saw. An error is a system call that failed; `wrong` are files, and parts of the
    open file, with other bytes than they should have. `slow`: of each step of more than `SLOW_S`
    its kind ("open" of a small file and its read, "read" of the open file), when it began in
    seconds of the machine's monotonic clock, and its seconds."""

    files: int = 0
    parts: int = 0
    errors: int = 0
    wrong: int = 0
    first_errors: list[str] = field(default_factory=list)
    slow: list[tuple[str, float, float]] = field(default_factory=list)


def name_of(number: int) -> str:
    return f"small/{number % 20:02d}/{number:05d}"


def small_body(name: str) -> bytes:
    """Returns the bytes of a small file."""
    bytes_of = random.Random(name)
    return bytes_of.randbytes(bytes_of.choice(SMALL_BYTES))


def part(number: int) -> bytes:
    """Returns a part of the big file."""
    return random.Random(f"{BIG} {number}").randbytes(PART_BYTES)


def write(directory: Path) -> None:
    """Writes the files, for other users to read."""
    for name in map(name_of, range(SMALL_FILES)):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(small_body(name))
    with open(directory / BIG, "wb") as file:
        file.writelines(map(part, range(BIG_PARTS)))


class Reader:
    """The threads of a reader, and their results."""

    def __init__(self, directory: str, limit_s: float) -> None:
        self._directory = directory
        self._end_s = time.monotonic() + limit_s
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._bodies = {name: small_body(name) for name in map(name_of, range(SMALL_FILES))}
        self._parts = [part(number) for number in range(BIG_PARTS)]
        self.results = Results()

    def run(self) -> Results:
        """Reads until the end, and returns the results."""
        signal.signal(signal.SIGTERM, lambda *_: self._stop.set())
        self._repeat(self._read_everything, times=1)
        Path(READY).touch()
        jobs = [self._opener(seed) for seed in range(OPENERS)] + [self._read_open_file]
        threads = [threading.Thread(target=self._repeat, args=(job,)) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.results

    def _repeat(self, job: Callable[[], None], times: int | None = None) -> None:
        """Does a job until it has succeeded so many times, or until the end."""
        while times != 0 and not self._is_at_end():
            try:
                job()
                times = times and times - 1
            except OSError as err:
                self._failed(err)
                self._stop.wait(PAUSE_S)

    def _is_at_end(self) -> bool:
        return self._stop.is_set() or time.monotonic() >= self._end_s

    def _failed(self, err: OSError) -> None:
        with self._lock:
            self.results.errors += 1
            if len(self.results.first_errors) < KEPT_ERRORS:
                self.results.first_errors.append(f"{time.monotonic():.2f} s: {err}")

    @contextlib.contextmanager
    def _timed(self, kind: str) -> Iterator[None]:
        began_s = time.monotonic()
        yield
        took_s = time.monotonic() - began_s
        with self._lock:
            if took_s > SLOW_S and len(self.results.slow) < KEPT_SLOW:
                self.results.slow.append((kind, round(began_s, 3), round(took_s, 3)))

    def _read_everything(self) -> None:
        """Reads each file once, so that the node's cache has all of them."""
        with open(f"{self._directory}/{BIG}", "rb") as file:
            bodies = [file.read(PART_BYTES) for _ in range(BIG_PARTS)]
        self.results.wrong += bodies != self._parts
        for name in self._bodies:
            self._read_small(name)

    def _opener(self, seed: int) -> Callable[[], None]:
        chosen, names = random.Random(seed), [*self._bodies]

        def read_one() -> None:
            self._read_small(chosen.choice(names))
            self._stop.wait(OPEN_PAUSE_S)

        return read_one

    def _read_small(self, name: str) -> None:
        with self._timed("open"), open(f"{self._directory}/{name}", "rb") as file:
            body = file.read()
        with self._lock:
            self.results.files += 1
            self.results.wrong += body != self._bodies[name]

    def _read_open_file(self) -> None:
        """Reads the big file again and again by one descriptor, until an error or the end."""
        fd = os.open(f"{self._directory}/{BIG}", os.O_RDONLY)
        try:
            number = 0
            while not self._stop.wait(PAUSE_S) and not self._is_at_end():
                self._read_part(fd, number)
                number = (number + 1) % BIG_PARTS
        finally:
            os.close(fd)

    def _read_part(self, fd: int, number: int) -> None:
        with self._timed("read"):
            body = os.pread(fd, PART_BYTES, number * PART_BYTES)
        with self._lock:
            self.results.parts += 1
            self.results.wrong += body != self._parts[number]


def main(arguments: list[str]) -> None:
    """Writes or reads; see the module's text."""
    match arguments:
        case ["write", directory]:
            write(Path(directory))
        case ["read", directory, limit_s]:
            print(json.dumps(asdict(Reader(directory, float(limit_s)).run())), flush=True)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
