"""`cachefs load`: submits a job that loads files into the cache; --wait shows it until its end."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import click

from cachefs.cli import job_progress, output, settings
from cachefs.cli.job_servers import START_S, Finder, MountPlace, Place, insist
from cachefs.core import messages as m
from cachefs.core.addresses import is_cluster
from cachefs.core.config import Config
from cachefs.core.errors import BadConfig, CacheFSError
from cachefs.core.globs import is_glob, literal
from cachefs.core.jobs import PATHS_PER_CALL, PRIORITIES, JobSpec
from cachefs.core.policies import parse
from cachefs.core.units import FOREVER_S, parse_duration, parse_size

STDIN: Final = 0
PATHS_BYTES: Final = m.MAX_FRAME_BYTES // 2  # of one request
_PER_SECOND: Final = re.compile(r"\s*(?:/s|ps)\s*$")


@click.command("load")
@click.argument("paths", nargs=-1, metavar="PATH|GLOB...")
@click.option("--files-from", metavar="FILE", help="Read paths from FILE, one per line (-: stdin).")
@click.option("--replicas", type=click.IntRange(1), metavar="N", help="Also set replicas to N.")
@click.option("--bandwidth", metavar="RATE", help="Limit for all workers together, e.g. 500MiB/s.")
@click.option("--hold", metavar="TIME", help="Do not evict loaded files for TIME (0: no hold).")
@click.option("--verify", is_flag=True, help="Verify all checksums at the end.")
@click.option("--priority", type=click.Choice(PRIORITIES), default="normal", show_default=True)
@click.option("--wait", is_flag=True, help="Wait and show progress; exit code 1 on a failure.")
@settings.command_options("load")
def command(
    paths: tuple[str, ...],
    files_from: str | None,
    replicas: int | None,
    bandwidth: str | None,
    hold: str | None,
    verify: bool,
    priority: str,
    wait: bool,
    as_json: bool,
    chosen: Config,
) -> int:
    """Load everything at or below each PATH (or matched by a quoted GLOB) into the cache.

    \b
    cachefs load --wait /mnt/data/train
    cachefs load '/mnt/data/train/n0*/**/*.jpg' --bandwidth 500MiB/s
    cachefs load --files-from epoch1.txt --hold 24h --priority high
    cachefs load cachefs://master:19998/imagenet --replicas 2 --verify

    The job runs in the background and survives restarts: `cachefs jobs` shows it. The same paths
    again change its settings. Loaded files are not evicted before their first read, for at most
    24 h, or for the time of --hold. A PATH is below a mount point, or `cachefs://MASTER/path`."""
    spec = JobSpec((), _rate(bandwidth), _time(hold), verify, priority)
    with Finder(chosen) as finder:
        groups = _choose(finder, paths, files_from)
        if wait and len(groups) > 1:
            raise BadConfig("these paths are in several mounts", remedy="use one command for each")
        if replicas is not None:
            set_replicas(groups, replicas, files_from)
        started = [(place, submit(place, spec, below)) for place, below in groups]
        if wait:
            ((place, submitted),) = started
            return job_progress.show_until_end(place, submitted.job, as_json)
        for place, submitted in started:
            say_started(place, submitted, as_json)
        return 0


def _rate(text: str | None) -> int:
    """Returns bytes per second; 0: no limit. Raises BadConfig."""
    if text is None:
        return 0
    try:
        return parse_size(_PER_SECOND.sub("", text))
    except BadConfig as err:
        raise BadConfig(f"bad rate {text!r}", remedy="write it as 500MiB/s or 2GiB/s") from err


def _time(text: str | None) -> float | None:
    if text is None:
        return None
    hold_s = parse_duration(text)
    if hold_s == FOREVER_S:
        raise BadConfig("a load cannot hold files for ever", remedy="pin it: cachefs pin")
    return hold_s


def _choose(
    finder: Finder, paths: Sequence[str], files_from: str | None
) -> list[tuple[Place, list[bytes]]]:
    """Returns the paths of each place. Paths of a list, and of existing files, are not globs."""
    groups: dict[Place, list[bytes]] = {}
    for path in paths:
        place, inside = finder.find(path)
        is_name = is_glob(inside) and finder.is_local(path) and os.path.lexists(path)
        groups.setdefault(place, []).append(literal(inside) if is_name else inside)
    for path in read_list(files_from) if files_from else ():
        place, inside = finder.find(path)
        groups.setdefault(place, []).append(literal(inside))
    if not groups:
        raise click.UsageError("nothing to load: give a PATH, or --files-from FILE")
    return list(groups.items())


def read_list(name: str) -> Iterator[str]:
    """Yields the lines of a file, except empty ones. Raises BadConfig."""
    source: str | int = STDIN if name == "-" else name  # names of files are bytes
    try:
        with open(
            source,
            encoding="utf-8",
            errors="surrogateescape",
            newline="\n",
            closefd=source != STDIN,
        ) as file:
            yield from _lines(file)
    except OSError as err:
        raise BadConfig(f"--files-from: {err.strerror}", path=name) from err


def _lines(file: Iterable[str]) -> Iterator[str]:
    return (line for line in (raw.rstrip("\r\n") for raw in file) if line)


def set_replicas(
    chosen: Sequence[tuple[Place, Sequence[bytes]]], replicas: int, files_from: str | None
) -> None:
    """Sets the replica count of each path. Raises BadConfig for globs, lists and single nodes."""
    policy = parse([f"replicas={replicas}"])
    for place, below in chosen:
        if isinstance(place, MountPlace) and not is_cluster(place.record.source.url):
            raise BadConfig("a single node keeps one copy", remedy="leave --replicas out")
        if files_from or any(is_glob(path) for path in below):
            raise BadConfig(
                "--replicas applies to paths, not to globs or lists",
                remedy=f"set it on a directory: cachefs policy set DIR replicas={replicas}",
            )
    for place, below in chosen:
        for path in below:
            place.call(m.SetPolicy(place.namespace, path, policy), m.PolicySet)


def submit(place: Place, spec: JobSpec, paths: Sequence[bytes]) -> m.JobSubmitted:
    """Submits a job of the paths, in as few requests as the frame limit allows. A repeated request
    creates no second job. Raises the typed errors."""
    first, *rest = batches(paths)
    key = secrets.token_hex(16)
    whole = JobSpec((*first,), spec.bandwidth_bytes_s, spec.hold_s, spec.verify, spec.priority)
    body = m.SubmitJob(place.namespace, whole, key, more=bool(rest))
    submitted = insist(lambda: place.call(body, m.JobSubmitted), _say_silent, START_S)
    count = len(first)
    for number, part in enumerate(rest, 1):
        last = number == len(rest)
        more = m.AddJobPaths(place.namespace, submitted.job, count, part, last)
        insist(lambda more=more: place.call(more, m.Done), _say_silent)  # type: ignore[misc]
        count += len(part)
    if rest:  # only now the server knows whether the job existed
        call = m.GetJob(place.namespace, submitted.job)
        job = insist(lambda: place.call(call, m.JobReply), _say_silent).job.job
        if job != submitted.job:
            return m.JobSubmitted(job, updated=True)
    return submitted


def _say_silent(err: CacheFSError) -> None:
    click.echo(f"cachefs: no answer, retrying: {err.cause}", err=True)


def batches(
    paths: Sequence[bytes], limit_bytes: int = PATHS_BYTES, limit_paths: int = PATHS_PER_CALL
) -> Iterator[list[bytes]]:
    """Yields batches of paths that fit one request. Raises BadConfig for a path that is too
    long."""
    part: list[bytes] = []
    size_bytes = 0
    for path in paths:
        cost_bytes = len(path) + 5  # of its msgpack header
        if cost_bytes > limit_bytes:
            raise BadConfig("the path is too long")
        if part and (size_bytes + cost_bytes > limit_bytes or len(part) == limit_paths):
            yield part
            part, size_bytes = [], 0
        part.append(path)
        size_bytes += cost_bytes
    yield part


def say_started(place: Place, submitted: m.JobSubmitted, as_json: bool) -> None:
    job = submitted.job
    if as_json:
        facts = {"job": job, "where": place.where, "updated": submitted.updated}
        return output.print_json_line(facts)
    what = "already exists and takes these settings" if submitted.updated else "is started"
    click.echo(f"OK, job {job} {what}; `cachefs jobs show {job} {place.named}` shows it")
