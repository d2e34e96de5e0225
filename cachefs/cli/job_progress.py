"""Follows a load job until it ends: shows its progress, its failures and the next command."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from typing import Final

import click

from cachefs.cli import output
from cachefs.cli.job_servers import Place, insist
from cachefs.cli.job_views import (
    View,
    document,
    failure_document,
    failure_lines,
    make_view,
    runs,
    summary,
)
from cachefs.core import messages as m
from cachefs.core.errors import DeadlineExceeded, Unreachable
from cachefs.core.jobs import JobFailure, JobState, JobStatus

FIRST_LOOK_S: Final = 0.05
LOOK_S: Final = 0.25
SHOWN_FAILURES: Final = 20
LOOKED_FAILURES: Final = 10_000  # whose causes are counted
FAILED: Final = 1


def show_until_end(place: Place, job: int, as_json: bool) -> int:
    """Shows a job until it no longer runs, then its result; returns the exit code. The job runs on
    a server: an interrupt ends only the display, and prints how to get back to it."""
    view = make_view(place, as_json)
    try:
        shown = follow(place, job, view)
    except (KeyboardInterrupt, Unreachable, DeadlineExceeded):
        view.close()
        print(f"cachefs: {continue_hint(place, job)}", file=sys.stderr)
        raise
    finally:
        view.close()
    return report(place, shown, as_json)


def continue_hint(place: Place, job: int) -> str:
    return (
        f"job {job} continues: `cachefs jobs show {job} {place.named}` shows it,"
        f" `cachefs jobs stop {job} {place.named}` stops it"
    )


def follow(place: Place, job: int, view: View) -> JobStatus:
    """Shows a job until it no longer runs; returns its last state. Waits for a restarting
    server."""
    pause_s = FIRST_LOOK_S
    while True:
        shown = insist(lambda: look(place, job), view.silent)
        view.show(shown)
        if not runs(shown):
            return shown
        time.sleep(pause_s)
        pause_s = min(LOOK_S, pause_s * 1.5)


def look(place: Place, job: int) -> JobStatus:
    """Returns the current state of a job. Raises NotFound."""
    return place.call(m.GetJob(place.namespace, job), m.JobReply).job


def report(place: Place, job: JobStatus, as_json: bool) -> int:
    """Prints how a job ended, with the first failures, and returns the exit code."""
    if as_json:
        listed = itertools.islice(failures(place, job.job), SHOWN_FAILURES)
        named = [failure_document(place, one) for one in listed]
        output.print_json_line({**document(place, job), "failures": named})
    else:
        for text in _failure_causes(place, job):
            print(f"cachefs: {text}", file=sys.stderr)
        click.echo("; ".join([summary(job), *_next_command(place, job)]))
    return 0 if job.state is JobState.SUCCEEDED else FAILED


def _failure_causes(place: Place, job: JobStatus) -> list[str]:
    """Returns a line for each cause of failures, and the command that lists the files."""
    known = list(itertools.islice(failures(place, job.job), LOOKED_FAILURES))
    lines = failure_lines(place, known)
    hint = f"cachefs jobs show {job.job} {place.named} --failures"
    if len(lines) > SHOWN_FAILURES or job.files_failed > len(known):
        lines = [*lines[:SHOWN_FAILURES], f"there are more failures; all of them: {hint}"]
    elif len(lines) < len(known):
        lines.append(f"each of the {len(known):,} files: {hint}")
    return lines


def _next_command(place: Place, job: JobStatus) -> list[str]:
    """Returns the command that continues or repairs the job, if one exists."""
    if job.state is JobState.STOPPED:
        return [f"`cachefs jobs resume {job.job} {place.named}` continues it"]
    if job.state is not JobState.FAILED:
        return []
    if not job.listing_done or job.files_done + job.files_failed < job.files_found:
        return [f"`cachefs jobs resume {job.job} {place.named}` continues it, once there is room"]
    return [f"`cachefs jobs retry {job.job} {place.named}` tries them again"]


def failures(place: Place, job: int) -> Iterator[JobFailure]:
    """Yields every failed file of a job, page by page."""
    after = 0
    while True:
        call = m.GetJobFailures(place.namespace, job, after)
        page = place.call(call, m.JobFailures)
        yield from page.failures
        if not page.next:
            return
        after = page.next
