"""Emulated accelerators, and their utilisation as DLIO and MLPerf Storage define it: the time in
which they compute, of all time, without the first step.

An accelerator is a process that sleeps for a batch's computation while a loader thread reads the
next batches. No tensor is made, so nothing but the reads of files competes for the CPUs.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import queue
import random
import struct
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final

import msgspec

from cachefs.core.errors import CacheFSError

PREFETCHED: Final = 2  # batches
END_S: Final = 120.0  # for a run beyond its computation
_ARRAY: Final = "x.npy"  # in each npz, as DLIO writes it
_MAGIC: Final = b"\x93NUMPY\x01\x00"


class AcceleratorModel(msgspec.Struct, frozen=True):
    """A workload of MLPerf Storage on H100s: the bytes of a sample, the samples of a batch, and the
    seconds that the accelerator computes on it. Each sample is a file."""

    sample_bytes: int
    batch: int
    compute_s: float
    files: int  # of the data set, by default
    npz: bool = False


MODELS: Final[dict[str, AcceleratorModel]] = {
    "resnet50": AcceleratorModel(114_660, 400, 0.224, 2000),
    "unet3d": AcceleratorModel(146_600_628, 7, 0.323, 14, npz=True),
    "cosmoflow": AcceleratorModel(2_828_486, 1, 0.0035, 1000),
}


class LoaderFailed(CacheFSError):
    """A loader of an emulated accelerator could not read, or did not end."""

    code = "loader-failed"


def make_files(model: AcceleratorModel, folder: Path, count: int) -> list[str]:
    """Writes a data set of random bytes; returns the names. Keeps files that have their size."""
    folder.mkdir(parents=True, exist_ok=True)
    suffix = "npz" if model.npz else "bin"
    names = [f"{index:06d}.{suffix}" for index in range(count)]
    for name in names:
        path = folder / name
        if not path.exists() or path.stat().st_size < model.sample_bytes:
            path.write_bytes(_npz(model.sample_bytes) if model.npz else _body(model.sample_bytes))
    return names


def utilisation(
    model: AcceleratorModel, folder: Path, names: Sequence[str], accelerators: int, steps: int
) -> float:
    """Returns the mean utilisation of this many accelerators, each of which reads `steps` batches
    of the files in a separate order. Raises LoaderFailed."""
    fork = multiprocessing.get_context("fork")
    go, results = fork.Event(), fork.Queue()
    paths = [os.fspath(folder / name) for name in names]
    processes = [
        fork.Process(target=_accelerate, args=(model, paths, number, steps, go, results))
        for number in range(accelerators)
    ]
    try:
        for process in processes:
            process.start()
        go.set()
        found: list[float | str] = [
            results.get(timeout=steps * model.compute_s + END_S) for _ in processes
        ]
    except queue.Empty:
        raise LoaderFailed("the loaders did not end in time", path=str(folder)) from None
    finally:
        for process in processes:
            process.kill()  # each has sent its result, or is late
            process.join()
    failed = [one for one in found if isinstance(one, str)]
    if failed:
        raise LoaderFailed(failed[0])
    return sum(float(one) for one in found) / len(found)


def _accelerate(
    model: AcceleratorModel, paths: list[str], number: int, steps: int, go: Event, results: Any
) -> None:
    """Runs one accelerator; its result is its utilisation, or what went wrong as text."""
    batches: queue.Queue[str] = queue.Queue(PREFETCHED)
    order = _order(paths, number)
    read = _npz_reader if model.npz else _file_reader(model.sample_bytes)
    loader = threading.Thread(
        target=_load, args=(batches, order, read, model.batch, steps), daemon=True
    )
    go.wait()
    loader.start()
    began, problem = 0.0, ""
    for _ in range(steps):
        problem = problem or batches.get()
        time.sleep(0 if problem else model.compute_s)
        began = began or time.monotonic()  # behind the first step
    total_s = time.monotonic() - began
    results.put(problem or (steps - 1) * model.compute_s / total_s)


def _load(
    batches: queue.Queue[str],
    order: Iterator[str],
    read: Callable[[str], None],
    batch: int,
    steps: int,
) -> None:
    for _ in range(steps):
        try:
            for _ in range(batch):
                read(next(order))
            batches.put("")
        except (OSError, zipfile.BadZipFile) as err:
            return batches.put(str(err))


def _order(paths: list[str], number: int) -> Iterator[str]:
    """Yields the paths shuffled, epoch after epoch."""
    draw = random.Random(number)
    while True:
        yield from draw.sample(paths, len(paths))


def _file_reader(size: int) -> Callable[[str], None]:
    buffer = bytearray(size + 1)

    def read(path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while os.readv(fd, [buffer]):
                pass
        finally:
            os.close(fd)

    return read


def _npz_reader(path: str) -> None:
    """Reads the array of an npz with its checksum, as numpy does."""
    with zipfile.ZipFile(path) as archive:
        archive.read(_ARRAY)


def _body(size: int) -> bytes:
    chunk = os.urandom(min(size, 1 << 20))
    return (chunk * (size // len(chunk) + 1))[:size]


def _npz(size: int) -> bytes:
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({size},), }}"
    header += " " * (-(len(_MAGIC) + 2 + len(header) + 1) % 64) + "\n"
    array = _MAGIC + struct.pack("<H", len(header)) + header.encode() + _body(size)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo(_ARRAY), array)
    return packed.getvalue()
