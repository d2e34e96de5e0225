"""Many readers of large files in one process, a thread each: `python -m bench.timed_readers SPEC`.

Each opens its file, waits until all have, and reads it from the beginning until the time is over;
every byte is compared. It prints one JSON line, a `Timed`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import msgspec

from bench.datasets import MIB, STAMP, numbered_stamp

OPEN_LIMIT_S = 120.0


class Spec(msgspec.Struct):
    """`files`: (path, number) of each reader."""

    files: list[tuple[str, int]]
    read_bytes: int
    duration_s: float


class Timed(msgspec.Struct):
    """`read_s`: of every read. `errors`: (the errno's name or another cause, count)."""

    read_s: list[float] = msgspec.field(default_factory=list)
    open_s: list[float] = msgspec.field(default_factory=list)
    bytes: int = 0
    wrong: list[str] = msgspec.field(default_factory=list)
    errors: list[str] = msgspec.field(default_factory=list)


def read_one(path: str, number: int, spec: Spec, gate: threading.Barrier, done: Timed) -> None:
    """Reads until the time is over. Each reader has its own record."""
    began_s = time.monotonic()
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError as err:
        done.errors.append(f"open: {err.strerror}")
        gate.wait(OPEN_LIMIT_S)
        return
    done.open_s.append(time.monotonic() - began_s)
    gate.wait(OPEN_LIMIT_S)
    until_s, at, size = time.monotonic() + spec.duration_s, 0, os.fstat(fd).st_size
    while time.monotonic() < until_s:
        began_s = time.monotonic()
        try:
            data = os.pread(fd, spec.read_bytes, at)
        except OSError as err:
            done.errors.append(f"read: {err.strerror}")
            continue
        finally:
            done.read_s.append(time.monotonic() - began_s)
        if data != expected(number, at, min(spec.read_bytes, size - at)):
            done.wrong.append(f"{path} at {at}")
        done.bytes += len(data)
        at += len(data)
        if at >= size:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            at = 0
    os.close(fd)


def expected(number: int, at: int, length: int) -> bytes:
    """Returns the bytes of a `numbered` file in a range aligned to the read size."""
    part = bytearray(length)
    for page in range(-(-at // MIB), -(-(at + length) // MIB)):
        STAMP.pack_into(part, page * MIB - at, numbered_stamp(number, page))
    return bytes(part)


def main(path: str) -> None:
    spec = msgspec.json.decode(Path(path).read_bytes(), type=Spec)
    threading.stack_size(256 << 10)
    gate = threading.Barrier(len(spec.files))
    records = [Timed() for _ in spec.files]
    threads = [
        threading.Thread(target=read_one, args=(name, number, spec, gate, done))
        for (name, number), done in zip(spec.files, records, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = Timed()
    for done in records:
        total.bytes += done.bytes
        for field in ("read_s", "open_s", "wrong", "errors"):
            getattr(total, field).extend(getattr(done, field))
    print(msgspec.json.encode(total).decode(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
