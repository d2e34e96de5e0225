"""Load jobs as lines, as JSON documents and as progress bars on a terminal."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from cachefs.cli import output
from cachefs.cli.job_servers import Place
from cachefs.core.errors import CacheFSError
from cachefs.core.jobs import HOLD_S, JobFailure, JobSpec, JobState, JobStatus
from cachefs.core.units import format_duration, format_size

if TYPE_CHECKING:
    from rich.console import RenderableType

LINE_EVERY_S: Final = 10.0  # without a terminal
JSON_EVERY_S: Final = 1.0
_COUNTS: Final = (
    "files_found", "files_done", "files_failed", "files_verified",
    "bytes_found", "bytes_done", "bytes_fetched",
)  # fmt: skip


def runs(job: JobStatus) -> bool:
    """Returns whether the job still makes progress: it has neither ended nor been stopped."""
    return not (job.state.has_ended or job.state is JobState.STOPPED)


def files(job: JobStatus) -> str:
    """Returns `812 of 20,000+ files`; `+`: the listing has not finished."""
    return f"{job.files_done:,} of {job.files_found:,}{_more(job)} files"


def sizes(job: JobStatus) -> str:
    """Returns `1.2 GiB of 2.8 GiB`."""
    return f"{format_size(job.bytes_done)} of {format_size(job.bytes_found)}{_more(job)}"


def _more(job: JobStatus) -> str:
    return "" if job.listing_done else "+"


def line(job: JobStatus) -> str:
    """Returns `812 of 20,000+ files, 1.2 GiB of 2.8 GiB+, 310 MiB/s, 7s left, 2 failed`."""
    if job.state is JobState.VERIFYING:
        parts = [f"checking, {job.files_verified:,} of {job.files_found:,} files"]
    else:
        parts = [files(job), sizes(job), f"{format_size(job.rate_bytes_s)}/s", *left(job)]
    if job.files_failed:
        parts.append(f"{job.files_failed:,} failed")
    parts += [job.message] if runs(job) and job.message else []
    return ", ".join(parts)


def left(job: JobStatus) -> list[str]:
    return [] if job.eta_s is None else [f"{format_duration(job.eta_s)} left"]


def summary(job: JobStatus) -> str:
    """Returns the closing line."""
    verb = {JobState.SUCCEEDED: "OK", JobState.STOPPED: "STOPPED"}.get(job.state, "FAILED")
    checked = ", every byte checked" if job.spec.verify and verb == "OK" else ""
    failed = f", {job.files_failed:,} failed" if job.files_failed else ""
    text = (
        f"{verb}{': ' if verb != 'OK' else ', '}loaded {files(job)}"
        f" ({sizes(job)}; {format_size(job.bytes_fetched)} from the origin)"
        f" in {format_duration(round(job.elapsed_s, 3))}{checked}{failed}"
    )
    return "; ".join(part for part in (text, job.message) if part)


def settings_of(spec: JobSpec) -> str:
    """Returns `2 GiB/s at most, held for 24h00m, ...`."""
    parts = [f"{format_size(spec.bandwidth_bytes_s)}/s at most"] if spec.bandwidth_bytes_s else []
    if spec.hold_s is None:
        parts.append(f"held until it is read, {format_duration(HOLD_S)} at most")
    else:
        parts.append(f"held for {format_duration(spec.hold_s)}" if spec.hold_s else "not held")
    parts += ["every byte is checked at the end"] if spec.verify else []
    return ", ".join([*parts, f"priority {spec.priority}"])


def failure_line(place: Place, failure: JobFailure) -> str:
    """Returns the path, once, and the cause."""
    return f"{place.shown(failure.path)}: {_cause(failure)}"


def _cause(failure: JobFailure) -> str:
    named = output.text_of(failure.path)
    return failure.cause.removeprefix(f"/{named}: ").removeprefix(f"{named}: ")


def failure_lines(place: Place, failures: Iterable[JobFailure]) -> list[str]:
    """Returns a line for each cause, the most frequent first. A cause of one file is shown as
    `failure_line`; otherwise the line has the count and the first path."""
    firsts: dict[str, JobFailure] = {}
    counts: Counter[str] = Counter()
    for failure in failures:
        cause = _cause(failure)
        firsts.setdefault(cause, failure)
        counts[cause] += 1
    return [
        failure_line(place, firsts[cause])
        if count == 1
        else f"{count:,} files: {cause}; the first is {place.shown(firsts[cause].path)}"
        for cause, count in counts.most_common()
    ]


def document(place: Place, job: JobStatus) -> dict[str, Any]:
    """Returns a job as a JSON document."""
    facts: dict[str, Any] = {"job": job.job, "where": place.where, "state": job.state.value}
    facts["paths"] = [place.shown(path) for path in job.paths]
    facts["path_count"] = job.path_count
    facts["settings"] = {
        "bandwidth_bytes_s": job.spec.bandwidth_bytes_s,
        "hold_s": job.spec.hold_s,
        "verify": job.spec.verify,
        "priority": job.spec.priority,
    }
    facts["message"] = job.message
    facts["listing_done"] = job.listing_done
    facts |= {name: getattr(job, name) for name in _COUNTS}
    facts |= {"submitted_at_s": job.submitted_at_s, "ended_at_s": job.ended_at_s}
    facts |= {"elapsed_s": round(job.elapsed_s, 3), "rate_bytes_s": round(job.rate_bytes_s)}
    return facts | {"eta_s": None if job.eta_s is None else round(job.eta_s, 1)}


def failure_document(place: Place, failure: JobFailure) -> dict[str, Any]:
    path = place.shown(failure.path)
    facts = {"path": path, "code": failure.code, "cause": failure.cause}
    return facts | {"attempts": failure.attempts}


class View:
    """A display of a job's progress. The base class shows nothing."""

    def show(self, job: JobStatus) -> None:
        """Called with each polled state; last with a state that no longer runs."""

    def silent(self, err: CacheFSError) -> None:
        """Called when the server did not answer; the request is retried."""

    def close(self) -> None:
        """Restores the terminal; idempotent."""


def make_view(place: Place, as_json: bool) -> View:
    """Returns the view of a job: JSON lines, bars on a terminal, or else periodic lines."""
    if as_json:
        return JsonView(place)
    return Bars() if sys.stderr.isatty() else Lines()


class JsonView(View):
    """Prints at most one JSON line for each second of the job's elapsed time."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._next_s = 0.0

    def show(self, job: JobStatus) -> None:
        if runs(job) and job.elapsed_s >= self._next_s:
            self._next_s = job.elapsed_s + JSON_EVERY_S
            output.print_json_line(document(self._place, job))


class Lines(View):
    """Prints a line on standard error every 10 s, and whenever the job's message changes."""

    def __init__(self) -> None:
        self._next_s = LINE_EVERY_S
        self._was_silent = False
        self._message = ""

    def show(self, job: JobStatus) -> None:
        self._was_silent = False
        is_new, self._message = job.message != self._message, job.message
        if runs(job) and (is_new or job.elapsed_s >= self._next_s):
            self._next_s = job.elapsed_s + LINE_EVERY_S
            print(f"job {job.job}: {line(job)}", file=sys.stderr, flush=True)

    def silent(self, err: CacheFSError) -> None:
        if not self._was_silent:
            print(f"cachefs: no answer, retrying: {err.cause}", file=sys.stderr, flush=True)
        self._was_silent = True


class Bars(View):
    """A bar of bytes on standard error and a line of counts below it, drawn by rich."""

    def __init__(self) -> None:
        self._job: JobStatus | None = None
        self._live = output.live()
        self._live.start()

    def show(self, job: JobStatus) -> None:
        self._job = job
        self._live.update(_drawn(job), refresh=True)

    def silent(self, err: CacheFSError) -> None:
        from rich.text import Text  # rich would read a plain text as markup

        text = f"no answer, retrying: {err.cause}"
        shown = _drawn(self._job, text) if self._job else Text(text)
        self._live.update(shown, refresh=True)

    def close(self) -> None:
        self._live.stop()


def _drawn(job: JobStatus, note: str = "") -> RenderableType:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    total, done = _of_bar(job)
    bar = ProgressBar(total, done, pulse=total is None)
    share = output.percent_of(done, total) if total else ""
    row = Table.grid(padding=(0, 1), expand=True)
    row.add_column(ratio=1)
    cells = [share, sizes(job), f"{format_size(job.rate_bytes_s)}/s", *left(job)]
    for _ in cells:
        row.add_column(no_wrap=True, justify="right")
    row.add_row(bar, *cells)
    lines = [note or counts(job), *([job.message] if runs(job) and job.message else [])]
    return Group(row, *(Text(one, no_wrap=True, overflow="ellipsis") for one in lines))


def _of_bar(job: JobStatus) -> tuple[float | None, float]:
    """Returns (total, done); total is None while it is unknown. An empty job counts as complete."""
    if job.state is JobState.VERIFYING:
        return max(1, job.files_found), job.files_verified if job.files_found else 1
    total = max(1, job.bytes_found) if job.listing_done else None
    return total, job.bytes_done if job.bytes_found else 1


def counts(job: JobStatus) -> str:
    """Returns `job 3: 812 of 20,000+ files, 2 failed, listing`."""
    checking = job.state is JobState.VERIFYING
    parts = [files(job)]
    parts += [f"{job.files_failed:,} failed"] if job.files_failed else []
    parts += [] if job.listing_done else ["listing continues"]
    parts += [f"checking, {job.files_verified:,} verified"] if checking else []
    return f"job {job.job}: " + ", ".join(parts)
