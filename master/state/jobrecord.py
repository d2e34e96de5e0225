"""What outlives the master of a load job. Pure.

A job goes through its listing twice: to load, then to check. `fed` and `checked` are the watermarks
of both, `counted` is where the walk is that counts ahead. Counts are of what the watermark passed.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cachefs.core.errors import BadConfig
from cachefs.core.jobs import JobFailure, JobSpec, JobState
from master.state.window import START, Position

PATHS_SHOWN: Final = 10
MAX_UNFINISHED: Final = 64
MAX_ENDED: Final = 1000
MAX_ALSO: Final = 16
MAX_FAILURES: Final = 1_000_000
KEY_FOR_S: Final = 24 * 3600.0


class Also(msgspec.Struct, frozen=True, array_like=True):
    """A job that turned out to be of the same paths as another one."""

    job: int
    key: str


class JobRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """`spec`: without its paths, which are in a table; `paths`: the first of them. `digest`: of the
    paths, of those so far while `paths_open`. `base`: the deepest path that all of them lie at or
    below. `round`: of failures; what an earlier one had is being forgotten. `again`: it failed for
    want of room, and may go on. `matched`: did the path that is being counted select a file?
    `also`: other jobs that this one stands for."""

    job: int
    spec: JobSpec
    paths: tuple[bytes, ...]
    path_count: int
    submitted_at_s: float
    paths_open: bool = False
    key: str = ""
    digest: bytes = b""
    base: bytes = b""
    state: JobState = JobState.LOADING
    message: str = ""
    again: bool = False
    forgotten: bool = False
    round: int = 0
    counted: Position = START
    matched: bool = False
    counting_done: bool = False
    fed: Position = START
    feeding_done: bool = False
    checked: Position = START
    files_found: int = 0
    bytes_found: int = 0
    bytes_needed: int = 0  # of caches: with replicas
    files_done: int = 0
    bytes_done: int = 0
    bytes_fetched: int = 0
    files_failed: int = 0
    files_verified: int = 0
    bytes_verified: int = 0
    ended_at_s: float = 0.0
    worked_s: float = 0.0
    also: tuple[Also, ...] = ()


class Write(msgspec.Struct, frozen=True):
    """To be made durable, together."""

    record: JobRecord
    failures: list[JobFailure]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(JobRecord)


def encode_record(record: JobRecord) -> bytes:
    return _encoder.encode(record)


def decode_record(value: bytes) -> JobRecord:
    """Raises BadConfig."""
    try:
        return _decoder.decode(value)
    except msgspec.DecodeError as err:
        raise BadConfig(
            f"the record of a load job is damaged: {err}",
            remedy="remove the master's store: names are found again, jobs are not",
        ) from err
