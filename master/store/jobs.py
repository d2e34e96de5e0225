"""Load jobs in the master's store: their records, their lists of paths, their failed files.

    JOBS          b"next"                            -> number of the next job (8 BE)
                  b"j" job (8 BE)                    -> msgpack map `JobRecord`
    JOB_PATHS     job (8 BE) place (8 BE)            -> a path or glob, as it was given
    JOB_FAILURES  job (8) round (4) b"n" place (8)   -> msgpack map `JobFailure`; places from 1 on
                  job (8) round (4) b"p" digest (16) -> b"": the file of that path failed

Forgotten jobs and failures of earlier rounds are deleted some rows at a time. The record of a
forgotten job is deleted last, so that the deletion continues after a crash.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from cachefs.core.jobs import FAILURES_BYTES, JobFailure
from master.state.job_record import JobRecord, decode_record, encode_record
from master.store.base import Reader, Table, Writer

NEXT_KEY: Final = b"next"
ROWS_AT_ONCE: Final = 4000  # deleted in a transaction
MOST_JOBS: Final = 10_000  # more than the master keeps

_PLACE: Final = struct.Struct(">QQ")
_ROUND: Final = struct.Struct(">QI")
_encode = msgspec.msgpack.Encoder().encode
_decode_failure = msgspec.msgpack.Decoder(JobFailure).decode


def _job_key(job: int) -> bytes:
    return b"j" + job.to_bytes(8, "big")


def _failure_key(job: int, round_: int, place: int) -> bytes:
    return _ROUND.pack(job, round_) + b"n" + place.to_bytes(8, "big")


def _path_key(job: int, round_: int, path: bytes) -> bytes:
    return _ROUND.pack(job, round_) + b"p" + hashlib.blake2b(path, digest_size=16).digest()


def records(reader: Reader) -> list[JobRecord]:
    """Returns all records, oldest first. Raises BadConfig."""
    found = reader.scan(Table.JOBS, b"j", b"k", MOST_JOBS)
    return [decode_record(value) for _, value in found]


def paths(reader: Reader, job: int, first: int, limit: int) -> list[bytes]:
    """Returns up to `limit` paths of a job's list, starting at place `first`."""
    after = _PLACE.pack(job, first)[:-1] if not first else _PLACE.pack(job, first - 1)
    found = reader.scan(Table.JOB_PATHS, after, _PLACE.pack(job + 1, 0), limit)
    return [value for _, value in found]


def failures(
    reader: Reader, job: int, round_: int, after: int, limit: int
) -> list[tuple[int, JobFailure]]:
    """Returns (place, failure) pairs of a round, after a place."""
    below = _failure_key(job, round_, (1 << 64) - 1)
    found = reader.scan(Table.JOB_FAILURES, _failure_key(job, round_, after), below, limit)
    return [(int.from_bytes(key[-8:], "big"), _decode_failure(value)) for key, value in found]


def fitting(found: list[tuple[int, JobFailure]]) -> list[tuple[int, JobFailure]]:
    """Returns the first failures that fit in one frame of a node's socket, at least one."""
    left = FAILURES_BYTES
    for place, (_, failure) in enumerate(found):
        left -= len(failure.path) + len(failure.cause.encode()) + 100  # of its other fields
        if left < 0 and place:
            return found[:place]
    return found


def has_failed(reader: Reader, job: int, round_: int, path: bytes) -> bool:
    return reader.get(Table.JOB_FAILURES, _path_key(job, round_, path)) is not None


def put_new(writer: Writer, record: JobRecord, first_paths: Sequence[bytes]) -> JobRecord:
    """Stores a new job. Returns its record with the job's number."""
    value = writer.get(Table.JOBS, NEXT_KEY)
    job = 1 if value is None else int.from_bytes(value, "big")
    record = msgspec.structs.replace(record, job=job)
    writer.put(Table.JOBS, [(NEXT_KEY, (job + 1).to_bytes(8, "big"))])
    put_paths(writer, job, 0, first_paths)
    put(writer, record, [])
    return record


def put_paths(writer: Writer, job: int, first: int, more: Sequence[bytes]) -> None:
    items = [(_PLACE.pack(job, first + n), path) for n, path in enumerate(more)]
    writer.put(Table.JOB_PATHS, items)


def put(writer: Writer, record: JobRecord, failed: Sequence[JobFailure]) -> None:
    """Stores a job's record and the files that failed since the last `put`."""
    writer.put(Table.JOBS, [(_job_key(record.job), encode_record(record))])
    if not failed:
        return
    place = last_place(writer, record) + 1
    rows = []
    for n, failure in enumerate(failed):
        rows.append((_failure_key(record.job, record.round, place + n), _encode(failure)))
        rows.append((_path_key(record.job, record.round, failure.path), b""))
    writer.put(Table.JOB_FAILURES, rows)


def last_place(reader: Reader, record: JobRecord) -> int:
    """Returns the last place of the round's failures, which is their count if none was deleted."""
    low, high = 0, 1 << 24
    while low < high:  # places are dense
        middle = (low + high + 1) // 2
        key = _failure_key(record.job, record.round, middle)
        if reader.get(Table.JOB_FAILURES, key) is None:
            high = middle - 1
        else:
            low = middle
    return low


def forget_some(writer: Writer, record: JobRecord) -> bool:
    """Deletes some rows of a forgotten job, or of earlier rounds of another job. Returns whether
    none are left."""
    job = record.job
    first = _ROUND.pack(job, 0)[:-1]
    below = _ROUND.pack(job + 1, 0) if record.forgotten else _ROUND.pack(job, record.round)
    if _delete(writer, Table.JOB_FAILURES, first, below):
        return False
    if not record.forgotten:
        return True
    if _delete(writer, Table.JOB_PATHS, _PLACE.pack(job, 0)[:-1], _PLACE.pack(job + 1, 0)):
        return False
    writer.delete(Table.JOBS, [_job_key(job)])
    return True


def _delete(writer: Writer, table: Table, after: bytes, below: bytes) -> bool:
    """Deletes rows of a range. Returns whether some may be left."""
    found = writer.scan(table, after, below, ROWS_AT_ONCE)
    writer.delete(table, [key for key, _ in found])
    return len(found) == ROWS_AT_ONCE
