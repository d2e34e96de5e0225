"""`cachefs jobs`: the load jobs, their progress, and their control."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import click

from cachefs.cli import job_progress, output, settings
from cachefs.cli.job_progress import failures, look
from cachefs.cli.job_servers import Finder, Place
from cachefs.cli.job_views import (
    document,
    failure_document,
    failure_line,
    files,
    runs,
    settings_of,
    sizes,
)
from cachefs.core import messages as m
from cachefs.core.config import Config
from cachefs.core.errors import BadConfig, NotFound, Unreachable
from cachefs.core.jobs import JobState, JobStatus
from cachefs.core.units import format_duration, format_size

PAGE: Final = 100
_Command = Callable[..., Any]
_HEAD: Final = ["JOB", "STATE", "FILES", "BYTES", "FAILED", "TIME", "LEFT", "PATHS"]
_WHY_INDENT: Final = " " * 5
_WHERE: Final = "[MOUNTPOINT|cachefs://MASTER]"


@click.group("jobs", invoke_without_command=True)
@settings.setting_flags("jobs")
@output.json_flag
@click.pass_context
def command(context: click.Context, /, as_json: bool, **flags: Any) -> Any:
    """Manage the load jobs of a mount's source, or of a cluster. Without a command: list them.

    \b
    cachefs jobs ls
    cachefs jobs show 7 --follow
    cachefs jobs show 7 --failures
    cachefs jobs stop 7            # `resume` continues it
    cachefs jobs retry 7           # the failed files

    Each mounted source, and each cluster, numbers its jobs separately. If a number is ambiguous,
    name the mount or the cluster (`cachefs jobs show 7 /mnt/data`).
    """
    if context.invoked_subcommand is None:
        return context.invoke(list_, as_json=as_json)
    if as_json:
        raise click.UsageError("write --json after the command's name", context)
    return None


def _one(function: _Command) -> _Command:
    """Adds the arguments of a command about one job."""
    function = settings.command_options("jobs")(function)
    function = click.argument("where", metavar=_WHERE, required=False)(function)
    return click.argument("job", metavar="ID", type=click.IntRange(1))(function)


@command.command("ls")
@click.argument("where", metavar=_WHERE, required=False)
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="Maximum.")
@click.option("--all", "every", is_flag=True, help="List every recorded job.")
@settings.command_options("jobs")
def list_(where: str | None, limit: int, every: bool, as_json: bool, chosen: Config) -> None:
    """List the jobs, the newest first; of one place, or of everything mounted here.

    \b
    cachefs jobs ls
    """
    with Finder(chosen) as finder:
        places = [finder.find(where)[0]] if where else finder.everywhere()
        if not places:
            remedy = "name a cluster: cachefs jobs ls cachefs://MASTER"
            raise NotFound("no mount here answers", remedy=remedy)
        found = [(p, list(itertools.islice(jobs_of(p), None if every else limit))) for p in places]
    if as_json:
        return output.print_json([document(place, job) for place, rows in found for job in rows])
    for place, rows in found:
        if len(places) > 1:
            click.echo(f"{place.where}:")
        for line in table(place, rows):
            click.echo(line)
    if not any(rows for _, rows in found):
        click.echo("no jobs")


def jobs_of(place: Place) -> Iterator[JobStatus]:
    """Yields the jobs of a place, the newest first, page by page."""
    before = 0
    while True:
        page = place.call(m.ListJobs(place.namespace, before, PAGE), m.JobTable)
        yield from page.jobs
        if not page.next:
            return
        before = page.next


def table(place: Place, rows: Sequence[JobStatus]) -> list[str]:
    """Returns a header and aligned lines, each with the job's message below; empty without jobs."""
    if not rows:
        return []
    head, *lines = output.columns([_HEAD, *(_row(place, job) for job in rows)], right=(0, 4, 5, 6))
    under = [[f"{_WHY_INDENT}{_why(job)}: {job.message}"] if job.message else [] for job in rows]
    return [head, *(text for line, why in zip(lines, under, strict=True) for text in (line, *why))]


def _why(job: JobStatus) -> str:
    return "now" if runs(job) else "why"


def _row(place: Place, job: JobStatus) -> list[str]:
    left = "" if job.eta_s is None else format_duration(job.eta_s)
    taken = format_duration(round(job.elapsed_s, 1))
    head = [str(job.job), job.state.value, files(job).removesuffix(" files"), sizes(job)]
    return [*head, f"{job.files_failed:,}", taken, left, _paths(place, job)]


def _paths(place: Place, job: JobStatus) -> str:
    shown = place.shown(job.paths[0]) if job.paths else "-"
    return shown if job.path_count <= 1 else f"{shown} and {job.path_count - 1:,} more"


@command.command("show")
@_one
@click.option("--failures", "failed", is_flag=True, help="List the failed files with their causes.")
@click.option("--follow", is_flag=True, help="Show progress until it ends, as `load --wait`.")
def show(
    job: int, where: str | None, failed: bool, follow: bool, as_json: bool, chosen: Config
) -> int:
    """Show the progress of a job, and its settings.

    \b
    cachefs jobs show 7 --follow
    cachefs jobs show 7 --failures
    """
    if failed and follow:
        raise BadConfig("--failures and --follow exclude each other", remedy="give one of them")
    with Finder(chosen) as finder:
        place, shown = find_job(finder, job, where)
        if follow:
            return job_progress.show_until_end(place, job, as_json)
        if failed:
            _print_failures(place, job, as_json)
        elif as_json:
            output.print_json(document(place, shown))
        else:
            for line in job_lines(place, shown):
                click.echo(line)
    return 0


def find_job(finder: Finder, job: int, where: str | None) -> tuple[Place, JobStatus]:
    """Returns a job and its place. Raises NotFound; BadConfig if several places have its number;
    Unreachable if it may be at a server that does not answer."""
    if where is not None:
        place = finder.find(where)[0]
        return place, look(place, job)
    found, last = [], NotFound(f"no job {job}", remedy="`cachefs jobs` lists them")
    for place in finder.everywhere():
        try:
            found.append((place, look(place, job)))
        except NotFound as err:
            last = err
        except Unreachable as err:
            output.warn(f"{place.where}: {err.cause}")
            finder.silent.append(place.where)
    if not found and finder.silent:
        silent = " and ".join(finder.silent)
        raise Unreachable(f"job {job} may be at {silent}: no answer", remedy="try again later")
    if not found:
        raise last
    if len(found) > 1:
        names = " and at ".join(place.where for place, _ in found)
        raise BadConfig(f"there is a job {job} at {names}", remedy="name one after the number")
    return found[0]


def job_lines(place: Place, job: JobStatus) -> list[str]:
    """Returns a job as lines."""
    more = job.path_count - len(job.paths)
    paths = [place.shown(path) for path in job.paths] + ([f"and {more:,} more"] if more else [])
    failed = f", {job.files_failed:,} failed" if job.files_failed else ""
    checked = job.state is JobState.VERIFYING
    rows = [("at", place.where), *(("paths" if not n else "", p) for n, p in enumerate(paths))]
    rows += [("settings", settings_of(job.spec)), ("files", f"{files(job)}{failed}")]
    rows += (
        [("checking", f"{job.files_verified:,} of {job.files_found:,} files")] if checked else []
    )
    rows += [("bytes", f"{sizes(job)}, {format_size(job.bytes_fetched)} from the origin")]
    rows += [("rate", _rate(job))] if job.state is JobState.LOADING else []
    rows += [("time", f"{format_duration(round(job.elapsed_s, 1))}, {_since(job)}")]
    rows += [(_why(job), job.message)] if job.message else []
    head = f"job {job.job}: {job.state.value}"
    return [head, *(f"  {name:<9} {text}" for name, text in rows)]


def _rate(job: JobStatus) -> str:
    left = "" if job.eta_s is None else f", {format_duration(job.eta_s)} left"
    return f"{format_size(job.rate_bytes_s)}/s{left}"


def _since(job: JobStatus) -> str:
    times = [f"submitted {_clock(job.submitted_at_s)}"]
    times += [f"ended {_clock(job.ended_at_s)}"] if job.ended_at_s else []
    return ", ".join(times)


def _clock(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))


def _print_failures(place: Place, job: int, as_json: bool) -> None:
    """Prints one failure per line, without a limit."""
    for failure in failures(place, job):
        if as_json:
            output.print_json_line(failure_document(place, failure))
        else:
            click.echo(failure_line(place, failure))


@command.command("stop")
@_one
def stop(**options: Any) -> int:
    """Stop a job; what it loaded stays. `resume` continues it.

    \b
    cachefs jobs stop 7
    """
    return _control("stop", "is stopped", **options)


@command.command("resume")
@_one
@click.option("--wait", is_flag=True, help="Show progress until it ends, as `load --wait`.")
def resume(**options: Any) -> int:
    """Continue a job that was stopped, or that failed for lack of space.

    \b
    cachefs jobs resume 7 --wait
    """
    return _control("resume", "continues", **options)


@command.command("retry")
@_one
@click.option("--wait", is_flag=True, help="Show progress until it ends, as `load --wait`.")
def retry(**options: Any) -> int:
    """Retry the failed files of a job that has ended.

    \b
    cachefs jobs retry 7
    """
    return _control("retry", "retries the failed files", **options)


@command.command("forget")
@_one
def forget(**options: Any) -> int:
    """Delete the record of a job that has ended. What it loaded stays.

    \b
    cachefs jobs forget 7
    """
    return _control("forget", "is forgotten", **options)


def _control(
    action: str,
    done: str,
    *,
    job: int,
    where: str | None,
    chosen: Config,
    as_json: bool,
    wait: bool = False,
) -> int:
    with Finder(chosen) as finder:
        place, _ = find_job(finder, job, where)
        reply = place.call(m.ControlJob(place.namespace, job, action), m.JobReply)
        if wait:
            return job_progress.show_until_end(place, job, as_json)
    if as_json:
        output.print_json(document(place, reply.job))
    elif action == "forget":
        click.echo(f"OK, job {job} {done}; what it loaded stays")
    else:
        click.echo(f"OK, job {job} {done}: {files(reply.job)}, {sizes(reply.job)} are loaded")
    return 0
