"""A program that reads a mount and compares it with its source, until a file appears.

`python reader.py KIND MOUNTPOINT SOURCE STOP SEED`, where KIND is `open` (open, read, close of
random files), `hold` (random ranges of files that stay open; now and then another one is opened),
`keep` (random ranges of files that the first round reads and then opens), `map` (random ranges of
files that stay mapped), `walk` (`find` over everything) or `stat`. It prints `reading` after its
first round and, at the end, one JSON document: how many rounds were right, and what went wrong. The
longest round after the first, which opens what it needs, says how long a caller was held up. After
a round the reader rests as long as the round took, at most `REST_S`: the processes that it waits
for need the CPU to start.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import sys
import time
from collections.abc import Callable, Iterator

MAX_RANGE_BYTES = 300_000
HELD = 12  # files
REST_MIN_S, REST_S = 0.001, 0.1


class Wrong(Exception):
    """Bytes, or names, that are not those of the source."""


class Reader:
    def __init__(self, mountpoint: str, source: str, seed: int) -> None:
        self.mountpoint = mountpoint
        self.source = source
        self.random = random.Random(seed)
        self.tree = sorted(tree(source))
        self.files = [name for name, size in self.tree if size >= 0]
        self.sizes = dict(self.tree)
        self.full = [name for name in self.files if self.sizes[name]]
        self.originals = {name: os.open(f"{source}/{name}", os.O_RDONLY) for name in self.files}
        self.held: dict[str, tuple[int, mmap.mmap]] = {}
        self.kept: dict[str, int] = {}

    def open(self) -> None:
        name = self.random.choice(self.full)
        with open(f"{self.mountpoint}/{name}", "rb", buffering=0) as file:
            data = file.readall()
        if data != os.pread(self.originals[name], self.sizes[name] + 1, 0):
            raise Wrong(name)

    def hold(self) -> None:
        (name, (fd, _)), offset, size = self._pick()
        if os.pread(fd, size, offset) != os.pread(self.originals[name], size, offset):
            raise Wrong(f"{name} at {offset}")

    def keep(self) -> None:
        if not self.kept:
            for name in self.random.sample(self.full, min(HELD, len(self.full))):
                with open(f"{self.mountpoint}/{name}", "rb", buffering=0) as file:
                    file.readall()  # complete from now on, and then opened as such
                self.kept[name] = os.open(f"{self.mountpoint}/{name}", os.O_RDONLY)
        name, fd = self.random.choice(list(self.kept.items()))
        offset, size = self.random.randrange(self.sizes[name]), MAX_RANGE_BYTES
        if os.pread(fd, size, offset) != os.pread(self.originals[name], size, offset):
            raise Wrong(f"{name} at {offset}")

    def map(self) -> None:
        (name, (_, view)), offset, size = self._pick()
        if view[offset : offset + size] != os.pread(self.originals[name], size, offset):
            raise Wrong(f"{name} at {offset}")

    def walk(self) -> None:
        if sorted(tree(self.mountpoint)) != self.tree:
            raise Wrong("names or sizes")

    def stat(self) -> None:
        name = self.random.choice(self.files)
        if os.stat(f"{self.mountpoint}/{name}").st_size != self.sizes[name]:
            raise Wrong(name)

    def _pick(self) -> tuple[tuple[str, tuple[int, mmap.mmap]], int, int]:
        if len(self.held) < HELD or self.random.random() < 0.02:
            self._hold_another()
        item = self.random.choice(list(self.held.items()))
        offset = self.random.randrange(self.sizes[item[0]])
        return item, offset, self.random.randrange(1, MAX_RANGE_BYTES)

    def _hold_another(self) -> None:
        name = self.random.choice(self.full)
        if len(self.held) >= HELD:
            fd, view = self.held.pop(self.random.choice(list(self.held)))
            view.close()
            os.close(fd)
        if name not in self.held:
            fd = os.open(f"{self.mountpoint}/{name}", os.O_RDONLY)
            self.held[name] = fd, mmap.mmap(fd, 0, prot=mmap.PROT_READ)


def tree(root: str) -> Iterator[tuple[str, int]]:
    """Paths below a directory, and their sizes (-1: a directory)."""

    def give_up(err: OSError) -> None:
        raise err

    for folder, folders, files in os.walk(root, onerror=give_up):
        at = os.path.relpath(folder, root)
        for name in folders:
            yield os.path.normpath(f"{at}/{name}"), -1
        for name in files:
            yield os.path.normpath(f"{at}/{name}"), os.stat(f"{folder}/{name}").st_size


def repeat(act: Callable[[], None], stop: str) -> dict[str, object]:
    rounds, longest_s, errors = 0, 0.0, []
    while not os.path.exists(stop):
        is_first, started = not rounds, time.monotonic()
        try:
            act()
            if not rounds:
                print("reading", flush=True)
            rounds += 1
        except (OSError, Wrong) as err:
            errors.append(f"{type(err).__name__}: {err}")
            if len(errors) >= 5:
                break
        took_s = time.monotonic() - started
        if not is_first:
            longest_s = max(longest_s, took_s)
        time.sleep(min(REST_S, max(REST_MIN_S, took_s)))
    return {"rounds": rounds, "longest_s": longest_s, "errors": errors}


if __name__ == "__main__":
    kind, mountpoint, source, stop, seed = sys.argv[1:]
    reader = Reader(mountpoint, source, int(seed))
    print(json.dumps(repeat(getattr(reader, kind), stop)))
