"""`cachefs top`: a live table of how a mount, a node or a cluster is used."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import click

from cachefs.cli import clusters, output, settings
from cachefs.cli.cluster_files import SHOWN_ID
from cachefs.cli.commands import health, top_view
from cachefs.cli.commands.top_view import Look, node_sample, summed
from cachefs.cli.masters import Masters, is_away
from cachefs.cli.owners import all_records
from cachefs.cli.session import attached, find_target
from cachefs.client.admin import AdminClient
from cachefs.client.http import HttpClient
from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.access import is_loopback, parse_address
from cachefs.core.addresses import address_of, is_cluster, master_url
from cachefs.core.config import Config
from cachefs.core.errors import BadConfig, NotFound, ProtocolError, Unreachable, Unsupported
from cachefs.core.health import HealthProblem
from cachefs.core.jobs import JobStatus
from cachefs.core.mountinfo import read_mounts
from cachefs.core.units import format_duration, parse_duration
from cachefs.launcher.state import MountRecord, StateHome

JOBS: Final = 50  # the newest; those that have not ended are shown
LEAST_S: Final = 0.2
_HTTP: Final = ("http://", "https://")
# Takes one look. True: also at problems and jobs, which may wait for a master.
Looker = Callable[[bool], Look]


@click.command("top")
@click.argument("where", metavar="[MOUNTPOINT|cachefs://MASTER|http://WORKER]", required=False)
@click.option("--interval", default="2s", show_default=True, help="Time between two updates.")
@click.option(
    "-n", "--count", metavar="N", type=click.IntRange(min=1), help="Exit after N updates."
)
@settings.command_options("top")
def command(
    where: str | None, interval: str, count: int | None, as_json: bool, chosen: Config
) -> None:
    """Show the current use of a mount, a node or a cluster: opens and hits, bytes from the origin
    and from other workers, by path; load jobs; evictions; the slowest fills of the last minute.
    Opens by path are sampled every 5 s (`~`).

    \b
    cachefs top /mnt/data
    cachefs top cachefs://master:19998     # of all its workers
    cachefs top --json -n 1                # one line; without a terminal: one table
    """
    pause_s = parse_duration(interval)
    if pause_s < LEAST_S:
        raise BadConfig(f"bad interval {interval!r}", remedy=f"at least {LEAST_S:g}s")
    is_live = sys.stdout.isatty() and not as_json
    count = count if count is not None or is_live or as_json else 1
    with _looker(where, chosen) as look, _screen(is_live) as show:
        frames = _frames(look, pause_s, count)
        try:
            for frame in frames:
                output.print_json_line(top_view.document(frame)) if as_json else show(frame)
        except KeyboardInterrupt:
            if not is_live:
                raise


def _frames(look: Looker, pause_s: float, count: int | None) -> Iterator[top_view.Frame]:
    """Yields a frame after each pause; `count` None: without end. The first look is not shown."""
    old = look(False)
    while count is None or count > 0:
        time.sleep(pause_s)
        new = look(True)
        yield top_view.frame(old, new)
        old, count = new, None if count is None else count - 1


def _print(frame: top_view.Frame) -> None:
    for line in top_view.lines(frame, time.time()):
        click.echo(line)


@contextlib.contextmanager
def _screen(is_live: bool) -> Iterator[Callable[[top_view.Frame], None]]:
    """Yields the function that shows a frame: in place on a terminal, else as further lines."""
    if not is_live:
        yield _print
        return
    from rich.live import Live
    from rich.text import Text

    with Live(screen=True, auto_refresh=False) as live:
        live.update(Text("connecting…"), refresh=True)

        def show(frame: top_view.Frame) -> None:
            clock = time.strftime("%H:%M:%S")
            head = f"{clock}, every {format_duration(frame.over_s)}; Ctrl-C ends"
            text = Text(
                "\n".join([head, *top_view.lines(frame, time.time())]),
                no_wrap=True,
                overflow="crop",
            )
            live.update(text, refresh=True)

        yield show


@contextlib.contextmanager
def _looker(where: str | None, chosen: Config) -> Iterator[Looker]:
    """Yields the function that takes a look. Raises NotFound, BadConfig, and as connecting."""
    if where is not None and where.startswith(_HTTP):
        is_here = is_loopback(parse_address(address_of(where), 0)[0])
        url = clusters.master_of(chosen) if is_here else where
        with clusters.connect_worker(where, chosen, url) as worker:
            yield lambda _: _look_at_worker(worker)
    elif where is not None and not is_cluster(where):
        record = find_target(where, settings.state_home(chosen)).record
        yield lambda more: _look_at_mounts([record], chosen, more)
    elif where is not None or clusters.is_cluster_configured(chosen):
        with _admin(where, chosen) as master:
            yield lambda more: _look_at_cluster(master, chosen, more)
    else:
        records = _mounted(settings.state_home(chosen))
        yield lambda more: _look_at_mounts(records, chosen, more)


def _admin(where: str | None, chosen: Config) -> AdminClient:
    if where is None:
        return clusters.connect_admin(chosen)
    url = master_url(where, tls=clusters.uses_tls(chosen))
    return AdminClient(url, clusters.security(chosen, url))


def _mounted(home: StateHome) -> list[MountRecord]:
    """Returns one mount of each server here. Raises NotFound."""
    found: dict[str, MountRecord] = {}
    for record in all_records(read_mounts().ours(), home):
        found.setdefault(record.socket, record)
    if not found:
        raise NotFound("nothing is mounted", remedy="name a cluster: cachefs top cachefs://MASTER")
    return [*found.values()]


def _look_at_mounts(records: list[MountRecord], chosen: Config, more: bool) -> Look:
    trees: list[tuple[MountRecord, dict[str, Any]]] = []
    jobs: list[JobStatus] = []
    problems: list[HealthProblem] = []
    masters = Masters(chosen)
    for record in records:
        status = health.server_status(record)
        trees.append((record, status["cache"]))
        if not more:
            continue
        found = health.of_mount_tree(record, status, masters)
        problems += found
        if not any(map(is_away, found)):
            jobs += _running(functools.partial(_jobs_of, record))
    title = ", ".join(f"{one.mountpoint} ({one.source.url})" for one in records)
    shown = [(one.mountpoint, "ok", tree) for one, tree in trees]
    return _look(title, shown, jobs, health.unique(problems))


def _jobs_of(record: MountRecord) -> list[JobStatus]:
    """Returns the newest load jobs of a mount's namespace. Raises as calling its server."""
    with attached(record) as session:
        return session.call(m.ListJobs(session.namespace, limit=JOBS), m.JobTable).jobs


def _look_at_worker(worker: HttpClient) -> Look:
    tree = worker.call(c.WorkerStatus(), c.WorkerStatusReply).status["cache"]
    return _look(worker.url, [(worker.url, "ok", tree)], [], health.of_tree({"cache": tree}))


def _look(
    title: str,
    trees: list[tuple[str, str, dict[str, Any]]],
    jobs: list[JobStatus],
    problems: list[HealthProblem],
) -> Look:
    """Returns a look at servers, from the status trees of their caches."""
    nodes = [
        node_sample(
            name, state, tree, used_bytes=tree["used_bytes"], limit_bytes=tree["limit_bytes"]
        )
        for name, state, tree in trees
    ]
    caches = [tree for _, _, tree in trees]
    paths = summed(tree["paths"] for tree in caches)
    slow = {path: row for tree in caches for path, row in tree["slow_fills"].items()}
    return Look(time.monotonic(), title, nodes, paths, slow, jobs, problems)


def _look_at_cluster(master: AdminClient, chosen: Config, more: bool) -> Look:
    rows = master.workers().rows
    nodes = [
        node_sample(
            f"{row.id[:SHOWN_ID]} ({address_of(row.url)})",
            row.state,
            row.facts,
            used_bytes=row.used_bytes,
            limit_bytes=row.capacity_bytes,
        )
        for row in rows
    ]
    facts = [row.facts for row in rows]
    paths = summed(one.get("paths", {}) for one in facts)
    slow = {path: row for one in facts for path, row in one.get("slow_fills", {}).items()}
    jobs = _running(lambda: master.jobs(limit=JOBS).jobs) if more else []
    problems = Masters(chosen).problems(master) if more else []
    return Look(time.monotonic(), master.url, nodes, paths, slow, jobs, problems)


def _running(ask: Callable[[], list[JobStatus]]) -> list[JobStatus]:
    """Returns the jobs that have not ended. Returns none if the server has no jobs, or the master
    does not answer: the problems then include it."""
    try:
        return [job for job in ask() if not job.state.has_ended]
    except (Unsupported, ProtocolError, Unreachable):
        return []
