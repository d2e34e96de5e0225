"""Readers that continue while the process behind the file system is killed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import xxhash

from demo.dataset import Dataset

READERS = 4
CHUNK_BYTES = 1 << 20


class Survival:
    """`READERS` threads that read and check every file repeatedly. `problems`: errors and wrong
    bytes, by file. `longest_s`: the longest single open or read."""

    def __init__(self, dataset: Dataset, root: Path) -> None:
        self.files = 0
        self.bytes = 0
        self.longest_s = 0.0
        self.problems: list[str] = []
        self._dataset = dataset
        self._root = root
        self._stop = threading.Event()
        self._lock = threading.Lock()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Reads while the block runs, and then to the end of the files in progress."""
        threads = [threading.Thread(target=self._read, args=(n,)) for n in range(READERS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()

    def _read(self, number: int) -> None:
        names = [*self._dataset.files]
        names = names[number::READERS] + names
        while not self._stop.is_set():
            for name in names:
                if self._stop.is_set():
                    return
                self._read_one(name)

    def _read_one(self, name: str) -> None:
        hasher, size, longest_s = xxhash.xxh3_128(), 0, 0.0
        buffer = memoryview(bytearray(CHUNK_BYTES))
        problem = ""
        try:
            started = time.perf_counter()
            fd = os.open(self._root / name, os.O_RDONLY | os.O_CLOEXEC)
            try:
                while count := os.readv(fd, [buffer]):
                    longest_s = max(longest_s, time.perf_counter() - started)
                    hasher.update(buffer[:count])
                    size += count
                    started = time.perf_counter()
            finally:
                os.close(fd)
            if hasher.hexdigest() != self._dataset.files[name]:
                problem = f"{name}: wrong bytes"
        except OSError as err:
            problem = f"{name}: {err.strerror}"
        with self._lock:
            self.files += 1
            self.bytes += size
            self.longest_s = max(self.longest_s, longest_s)
            if problem:
                self.problems.append(problem)
