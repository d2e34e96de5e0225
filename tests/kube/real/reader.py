"""A trainer: reads files with known bytes for some seconds, compares every byte, and writes one
line of JSON with what it saw. Standard library only: pods run it by `python -I`.

    reader.py write DIRECTORY              writes the files
    reader.py read DIRECTORY SECONDS       reads them, until SIGTERM or for these seconds

Two threads open small files in a random order; one reads a file that stays open. A file's bytes
follow from its name, so that a reader needs no other copy of them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
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
KEPT_ERRORS: Final = 5


@dataclass
class Results:
    """What a reader saw. An error is a system call that failed; `wrong` are files, and parts of the
    open file, with other bytes than they should have."""

    files: int = 0
    parts: int = 0
    errors: int = 0
    wrong: int = 0
    longest_open_s: float = 0.0  # of opening and reading one small file
    longest_open_at_s: float = 0.0  # since the start
    longest_read_s: float = 0.0  # of one read of the open file
    first_errors: list[str] = field(default_factory=list)


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
        self._began_s = time.monotonic()
        self._end_s = self._began_s + limit_s
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._bodies = {name: small_body(name) for name in map(name_of, range(SMALL_FILES))}
        self._parts = [part(number) for number in range(BIG_PARTS)]
        self.results = Results()

    def run(self) -> Results:
        """Reads until the end, and returns the results."""
        signal.signal(signal.SIGTERM, lambda *_: self._stop.set())
        jobs = [self._opener(seed) for seed in range(OPENERS)] + [self._read_open_file]
        threads = [threading.Thread(target=self._repeat, args=(job,)) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.results

    def _repeat(self, job: Callable[[], None]) -> None:
        while not self._stop.is_set() and time.monotonic() < self._end_s:
            try:
                job()
            except OSError as err:
                self._failed(err)
                self._stop.wait(PAUSE_S)

    def _failed(self, err: OSError) -> None:
        at_s = time.monotonic() - self._began_s
        with self._lock:
            self.results.errors += 1
            if len(self.results.first_errors) < KEPT_ERRORS:
                self.results.first_errors.append(f"{at_s:.2f} s: {err}")

    def _opener(self, seed: int) -> Callable[[], None]:
        chosen, names = random.Random(seed), [*self._bodies]
        return lambda: self._read_small(chosen.choice(names))

    def _read_small(self, name: str) -> None:
        began_s = time.monotonic()
        with open(f"{self._directory}/{name}", "rb") as file:
            body = file.read()
        took_s, results = time.monotonic() - began_s, self.results
        with self._lock:
            results.files += 1
            results.wrong += body != self._bodies[name]
            if took_s > results.longest_open_s:
                results.longest_open_s = took_s
                results.longest_open_at_s = began_s - self._began_s

    def _read_open_file(self) -> None:
        """Reads the big file again and again by one descriptor, until an error or the end."""
        fd = os.open(f"{self._directory}/{BIG}", os.O_RDONLY)
        try:
            number = 0
            while not self._stop.wait(PAUSE_S) and time.monotonic() < self._end_s:
                self._read_part(fd, number)
                number = (number + 1) % BIG_PARTS
        finally:
            os.close(fd)

    def _read_part(self, fd: int, number: int) -> None:
        began_s = time.monotonic()
        body = os.pread(fd, PART_BYTES, number * PART_BYTES)
        took_s, results = time.monotonic() - began_s, self.results
        with self._lock:
            results.parts += 1
            results.wrong += body != self._parts[number]
            results.longest_read_s = max(results.longest_read_s, took_s)


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
