"""The status of a load job, from its record and the progress beyond the watermark. Pure."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from cachefs.core.jobs import JobState, JobStatus
from master.state.job_record import JobRecord


class Ahead(NamedTuple):
    """Progress of this pass beyond the watermark: files and bytes done, files that failed, and
    files verified as complete."""

    files: int
    bytes: int
    failed: int
    verified: int


def show(
    record: JobRecord,
    state: JobState,
    message: str,
    ahead: Ahead,
    *,
    elapsed_s: float,
    rate_bytes_s: float,
    eta_s: float | None,
) -> JobStatus:
    """Returns the status. The caller passes an end as `state` and `message` once it is durable."""
    files_done, bytes_done = record.files_done + ahead.files, record.bytes_done + ahead.bytes
    files_failed = record.files_failed + ahead.failed
    return JobStatus(
        job=record.job,
        state=state,
        paths=[*record.paths],
        path_count=record.path_count,
        spec=msgspec.structs.replace(record.spec, paths=record.paths),
        message=message,
        listing_done=record.counting_done,
        files_found=max(record.files_found, files_done + files_failed),
        bytes_found=max(record.bytes_found, bytes_done),
        files_done=files_done,
        bytes_done=bytes_done,
        bytes_fetched=record.bytes_fetched,
        files_failed=files_failed,
        files_verified=record.files_verified + ahead.verified,
        submitted_at_s=record.submitted_at_s,
        ended_at_s=record.ended_at_s if state.has_ended else 0.0,
        elapsed_s=round(elapsed_s, 3),
        rate_bytes_s=rate_bytes_s,
        eta_s=eta_s,
    )
