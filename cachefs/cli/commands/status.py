"""`cachefs status`: the status documents of servers, for one mount, for all, or for a cluster."""

from __future__ import annotations

import os
import time
from typing import Any, Final

import click
import msgspec

from cachefs.cli import clusters, output, settings, status_view
from cachefs.cli.commands import health, logs
from cachefs.cli.masters import Masters
from cachefs.cli.mountpoint import is_unserved
from cachefs.cli.owners import find_record, shown_user
from cachefs.cli.session import find_target
from cachefs.client.admin import AdminClient
from cachefs.core import cluster as c
from cachefs.core.addresses import master_url
from cachefs.core.config import Config
from cachefs.core.errors import CacheFSError
from cachefs.core.health import HealthProblem, problem_lines
from cachefs.core.mountinfo import Mount, read_mounts
from cachefs.core.printable import printable
from cachefs.launcher.state import MountRecord, StateHome

_OF_WORKER: Final = (
    *("id", "url", "host", "state", "version"),
    *("weight", "capacity_bytes", "used_bytes", "seen_s"),
)
# Reading a document of another user's process may raise these: its fields are of any type.
_ODD: Final = (AttributeError, LookupError, OverflowError, TypeError, ValueError)


@click.command("status")
@click.argument("where", metavar="[MOUNTPOINT|cachefs://MASTER]", required=False)
@settings.command_options("status")
def command(where: str | None, as_json: bool, chosen: Config) -> None:
    """Show the problems, cache use, hits, origin bytes, processes and logs of mounts, and the
    sources and workers of a cluster (--master, or that of `cachefs up`). --json has all figures.

    \b
    cachefs status /mnt/data
    cachefs status cachefs://master:19998
    """
    home = settings.state_home(chosen)
    if where is not None:
        if clusters.is_master(where):
            tree = _of_cluster(where, chosen, Masters(chosen))
        else:
            record = find_target(where, home).record
            tree = _with_problems(ask(record), record, Masters(chosen))
        return _print([tree], as_json, tree)
    masters = Masters(chosen)
    trees = [_try(mount, home, masters) for mount in read_mounts().ours()]
    if clusters.is_cluster_configured(chosen):
        trees.append(_try_cluster(clusters.master_of(chosen), chosen, masters))
    _print(trees, as_json, trees)


def _of_cluster(where: str, chosen: Config, masters: Masters) -> dict[str, Any]:
    """Returns the status that a master reports of its cluster. Raises what calling it raises."""
    url = master_url(where, tls=clusters.uses_tls(chosen))
    with AdminClient(url, clusters.security(chosen, url)) as master:
        tree, rows, problems = master.status(), master.workers().rows, masters.problems(master)
    workers = [_worker(row) for row in rows]
    found = {"master": url, "state": "ok", **tree, "workers": workers}
    return {**found, "problems": [msgspec.to_builtins(one) for one in problems]}


def _try_cluster(url: str, chosen: Config, masters: Masters) -> dict[str, Any]:
    """Returns the status as `_of_cluster`, or the problem of a master that does not answer. A
    master that has failed to answer gets no second request."""
    if known := masters.away(url):
        return _no_answer(url, known[0].cause, known)
    try:
        return _of_cluster(url, chosen, masters)
    except CacheFSError as err:
        return _no_answer(url, err.cause, masters.silent(url, err))


def _no_answer(url: str, cause: str, problems: list[HealthProblem]) -> dict[str, Any]:
    found = [msgspec.to_builtins(one) for one in problems]
    return {"master": url, "state": "no answer", "cause": cause, "problems": found}


def _worker(row: c.WorkerRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in _OF_WORKER} | row.facts


def _print(trees: list[dict[str, Any]], as_json: bool, document: Any) -> None:
    if as_json:
        output.print_json(document)
        return
    if not trees:
        click.echo("nothing is mounted")
    for i, tree in enumerate(trees):
        if i:
            click.echo()
        for line in view(tree):
            click.echo(printable(line))


def view(tree: dict[str, Any]) -> list[str]:
    """Returns the lines of a mount or a master for people, with its problems first."""
    problems = problem_lines(msgspec.convert(tree["problems"], list[HealthProblem]), time.time())
    show = status_view.mount_lines if "mountpoint" in tree else status_view.master_lines
    try:
        return show(tree, problems)
    except _ODD as err:
        head = " ".join(str(tree[name]) for name in ("mountpoint", "source") if name in tree)
        return [f"{head}  its status document cannot be shown: {type(err).__name__}: {err}"]


def _with_problems(
    tree: dict[str, Any], record: MountRecord | None, masters: Masters
) -> dict[str, Any]:
    """Returns the document of a mount with its problems."""
    if tree["state"] == "dead":
        found = health.of_dead(tree["mountpoint"])
    elif tree["state"] == "ok" and record is not None:
        found = health.of_mount_tree(record, tree, masters)
    else:
        found = []
    return {**tree, "problems": [msgspec.to_builtins(one) for one in found]}


def ask(record: MountRecord) -> dict[str, Any]:
    """Returns the status document of a mount's server, headed by the mount. Raises Unreachable."""
    tree = health.server_status(record)
    state = "dead" if is_unserved(record.mountpoint, record) else "ok"
    head = _head(record.mountpoint, record.source.url, state)
    return {**head, **_transport(tree, record.mountpoint), **tree, **head, **_logs(record)}


def _logs(record: MountRecord) -> dict[str, str]:
    return {f"{name}_log": str(path) for name, path in logs.files_of(record).items()}


def _transport(tree: dict[str, Any], mountpoint: str) -> dict[str, Any]:
    """Returns the transport of this mount; empty while no client serves it."""
    mounts = tree.get("mounts", [])
    for mount in mounts if isinstance(mounts, list) else []:
        if isinstance(mount, dict) and mount.get("mountpoint") == mountpoint:
            return {name: mount[name] for name in ("transport", "passthrough") if name in mount}
    return {}


def _try(mount: Mount, home: StateHome, masters: Masters) -> dict[str, Any]:
    """Returns the document and problems of a mount that may be dead or another user's."""
    record = find_record(mount, home)
    if record is not None:
        try:
            return _with_problems(ask(record), record, masters)
        except CacheFSError as err:
            return _of_silent(record, err)
    state = "dead" if is_unserved(mount.mountpoint, None) else _unknown(mount)
    return _with_problems(_head(mount.mountpoint, mount.source, state), None, masters)


def _of_silent(record: MountRecord, err: CacheFSError) -> dict[str, Any]:
    """Returns the document of a mount whose server does not answer."""
    unserved = is_unserved(record.mountpoint, record)
    found = health.of_dead(record.mountpoint) if unserved else [health.no_answer(record, err)]
    head = _head(record.mountpoint, record.source.url, "dead" if unserved else "no answer")
    return {**head, "cause": err.cause, "problems": [msgspec.to_builtins(one) for one in found]}


def _unknown(mount: Mount) -> str:
    if mount.owner_uid in (-1, os.geteuid()):
        return "not recorded here"
    return f"of user {shown_user(mount.owner_uid)}, not recorded here"


def _head(mountpoint: str, source: str, state: str) -> dict[str, Any]:
    shown = output.text_of(os.fsencode(mountpoint))
    return {"mountpoint": shown, "source": source, "state": state}
