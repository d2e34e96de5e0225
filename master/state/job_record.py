"""The durable record of a load job. Pure.

A job passes through its listing twice: to load, then to check. `fed` and `checked` are the two
watermarks, `counted` is the position of the counting walk. Progress counts end at the watermark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import msgspec

from cachefs.core.errors import BadConfig
from cachefs.core.globs import select
from cachefs.core.jobs import JobFailure, JobSpec, JobState
from master.state.window import START, Passed, Position

PATHS_SHOWN: Final = 10
MAX_UNFINISHED: Final = 64
MAX_ENDED: Final = 1000
MAX_ENDED_ROWS: Final = 20_000_000  # of all ended jobs, see `JobRecord.rows`
MAX_ALSO: Final = 16
MAX_FAILURES: Final = 1_000_000
KEY_FOR_S: Final = 24 * 3600.0


class Also(msgspec.Struct, frozen=True, array_like=True):
    """A job that turned out to have the same paths as another one."""

    job: int
    key: str


class JobRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The durable state of one job. `spec` has no paths: they are in a table; `paths`: the first of
    them. `digest`: of all paths recorded so far, complete unless `paths_open`. `base`: the deepest
    path that contains them all. `round`: the current round of failures; earlier ones are being
    removed. `again`: the job failed but can be resumed. `matched`: whether the path being counted
    has selected a file. `also`: duplicate jobs that this one stands for."""

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

    @property
    def lacks_paths(self) -> bool:
        """Whether all paths so far were counted, and the list of paths was not ended."""
        return self.paths_open and self.counted.index >= self.path_count

    @property
    def rows(self) -> int:
        """The number of paths and failures that the store has of the job."""
        return self.path_count + self.files_failed

    def paths_left(self, watermark: Position) -> list[bytes]:
        """Returns one or more paths that contain every file beyond `watermark`."""
        is_known = not self.paths_open and self.path_count <= len(self.paths)
        left = [select(path).base for path in self.paths[watermark.index :]] if is_known else []
        return left or [self.base]

    def after(self, passed: Passed) -> dict[str, object]:
        """Returns the fields that change when the current watermark moves past `passed`."""
        failed = len(passed.failures)
        values: dict[str, object] = {"files_failed": self.files_failed + failed}
        if self.feeding_done:
            return values | {
                "checked": passed.position,
                "files_verified": self.files_verified + passed.files_done,
                "bytes_verified": self.bytes_verified + passed.bytes_done,
                "files_done": max(0, self.files_done - failed),
                "bytes_done": max(0, self.bytes_done - passed.failed_bytes),
            }
        return values | {
            "fed": passed.position,
            "files_done": self.files_done + passed.files_done,
            "bytes_done": self.bytes_done + passed.bytes_done,
        }


class Write(msgspec.Struct, frozen=True):
    """A record and failures that are made durable together."""

    record: JobRecord
    failures: list[JobFailure]


def surplus(records: Iterable[JobRecord]) -> list[int]:
    """Returns the ended jobs to forget, those that ended first, but never the last one."""
    ended = [record for record in records if record.state.has_ended]
    ended.sort(key=lambda record: record.ended_at_s or math.inf)
    rows = sum(record.rows for record in ended)
    found = []
    for left, record in zip(range(len(ended), 1, -1), ended, strict=False):
        if left <= MAX_ENDED and rows <= MAX_ENDED_ROWS:
            break
        found.append(record.job)
        rows -= record.rows
    return found


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(JobRecord)


def encode_record(record: JobRecord) -> bytes:
    return _encoder.encode(record)


def decode_record(value: bytes) -> JobRecord:
    """Returns the decoded record. Raises BadConfig."""
    try:
        return _decoder.decode(value)
    except msgspec.DecodeError as err:
        raise BadConfig(
            f"the record of a load job is damaged: {err}",
            remedy="remove the master's store: names are found again, jobs are not",
        ) from err
