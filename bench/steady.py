"""Many steady readers at once: starts, checks and stops them, and collects their records."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from bench.datasets import Dataset
from bench.mounts import BenchFailed, Mounted
from bench.origin import REPOSITORY
from bench.steady_readers import PACE_S, SLOW_S, Record, Spec

STOP_LIMIT_S = 30.0  # an operation may be in flight


class Steady:
    """The readers of a mount, one process for each kind; see `steady`."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._running: list[tuple[str, subprocess.Popen[str]]] = []

    def start(self, spec: Spec, path: Path) -> None:
        """Starts a reader and waits until it has opened its files. Raises BenchFailed."""
        path.write_bytes(msgspec.json.encode(spec))
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.steady_readers", str(path)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._running.append((spec.kind, process))
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise BenchFailed(f"the reader `{spec.kind}` did not start")

    def check(self) -> None:
        """Raises BenchFailed if a reader has ended too early."""
        for kind, process in self._running:
            if process.poll() is not None:
                raise BenchFailed(f"the reader `{kind}` ended with {process.returncode}")

    def stop(self) -> None:
        """Stops all readers and collects their `records`. Raises BenchFailed if one hangs."""
        for _, process in self._running:
            if process.stdin is not None:
                process.stdin.close()
                process.stdin = None
        while self._running:
            kind, process = self._running[-1]
            try:
                text, _ = process.communicate(timeout=STOP_LIMIT_S)
            except subprocess.TimeoutExpired as err:
                raise BenchFailed(f"the reader `{kind}` hangs") from err
            self._running.pop()
            if process.returncode:
                raise BenchFailed(f"the reader `{kind}` ended with {process.returncode}")
            self.records.append(msgspec.json.decode(text, type=Record))

    def kill(self) -> None:
        for _, process in self._running:
            process.kill()
            process.wait()


@contextlib.contextmanager
def steady(
    mount: Mounted,
    data: Dataset,
    kinds: Sequence[str],
    folder: Path,
    pace_s: float = PACE_S,
    slow_s: float = SLOW_S,
) -> Iterator[Steady]:
    """Runs readers of `kinds` during the block, then stops them and completes their records."""
    readers = Steady()
    try:
        for number, kind in enumerate(kinds):
            spec = Spec(kind, str(mount.path), str(data.folder), str(data.checksums))
            spec.seed, spec.pace_s, spec.slow_s = number + 1, pace_s, slow_s
            readers.start(spec, folder / f"steady-{number}.json")
        yield readers
        readers.stop()
    finally:
        readers.kill()
