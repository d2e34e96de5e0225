"""`cachefs health`: the problems of a mount or a cluster, and their remedies."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable
from typing import Any, Final

import click
import msgspec

from cachefs.cli import clusters, output, settings
from cachefs.cli.masters import Masters, is_away
from cachefs.cli.mountpoint import is_unserved
from cachefs.cli.owners import find_record
from cachefs.cli.session import checked, connected, find_target
from cachefs.core import messages as m
from cachefs.core.addresses import is_cluster, master_url
from cachefs.core.config import Config
from cachefs.core.errors import CacheFSError, NotADirectory, NotFound, ProtocolError
from cachefs.core.health import HealthProblem, facts_of, health, problem, problem_lines, verdict
from cachefs.core.mountinfo import read_mounts
from cachefs.core.printable import printable
from cachefs.launcher.state import MountRecord, StateHome

ASK_S: Final = 20.0
ATTACH_S: Final = 2.0
WELL: Final = "OK, nothing is wrong"


@click.command("health")
@click.argument("where", metavar="[MOUNTPOINT|cachefs://MASTER]", required=False)
@settings.command_options("health")
def command(where: str | None, as_json: bool, chosen: Config) -> int:
    """List the problems of a mount or a cluster, each with its cause and remedy; without an
    argument, of all mounts here and of the configured cluster. Exit code 0 if nothing is wrong, 1
    if only warnings are printed, 2 if reads fail or bypass the cache.

    \b
    cachefs health /mnt/data
    cachefs health cachefs://master:19998
    """
    masters = Masters(chosen)
    found = unique(_problems(where, chosen, masters))
    if as_json:
        output.print_json([msgspec.to_builtins(one) for one in found])
    else:
        for line in problem_lines(found, time.time()) or ([] if masters.refused else [WELL]):
            click.echo(printable(line))
    for text in masters.refused:
        output.warn(f"the cluster is not looked at: {text}")
    return verdict(found) or int(bool(masters.refused))


def unique(problems: Iterable[HealthProblem]) -> list[HealthProblem]:
    """Returns each problem once: two mounts of one server have the same ones."""
    return [*dict.fromkeys(problems)]


def of_mount(record: MountRecord, masters: Masters) -> list[HealthProblem]:
    """Returns the problems of a mount, and of its cluster if it has one whose master answers."""
    if is_unserved(record.mountpoint, record):
        return of_dead(record.mountpoint)
    try:
        tree = server_status(record)
    except CacheFSError as err:
        return [no_answer(record, err)]
    return of_mount_tree(record, tree, masters)


def of_mount_tree(
    record: MountRecord, tree: dict[str, Any], masters: Masters
) -> list[HealthProblem]:
    """Returns the problems in the status document of a mount's server. For a mount of a cluster it
    adds the problems of the master, unless the document already reports MASTER_AWAY. Raises
    ProtocolError for a malformed document."""
    found = masters.from_node(of_tree(tree))
    if not is_cluster(record.source.url):
        return unique(found)
    if not any(map(is_away, found)):
        found += masters.of_record(record)
    if not any(map(is_away, found)) and _is_gone(record):
        found += of_tree({"mountpoint": record.mountpoint, "mount_is_gone": True})
    return unique(found)


def _is_gone(record: MountRecord) -> bool:
    """Returns whether the cluster lacks the directory that a mount shows. False if its node does
    not answer in time."""
    try:
        with connected(record) as client:
            client.call(m.Attach(record.source, record.sync_interval_s), ATTACH_S)
    except (NotFound, NotADirectory):
        return True
    except CacheFSError:
        pass
    return False


def server_status(record: MountRecord) -> dict[str, Any]:
    """Returns the status document of a mount's server. Raises what calling the server raises."""
    with connected(record) as client:
        return checked(client.call(m.Status(), ASK_S), m.StatusReply).status


def of_dead(mountpoint: str) -> list[HealthProblem]:
    """Returns the problems of a mount that no process serves."""
    return of_tree({"mountpoint": mountpoint, "mount_is_dead": True})


def of_tree(tree: dict[str, Any]) -> list[HealthProblem]:
    """Returns the problems in a status document. Raises ProtocolError."""
    try:
        return health(facts_of(tree), time.time())
    except ValueError as err:
        raise ProtocolError(str(err)) from err


def _problems(where: str | None, chosen: Config, masters: Masters) -> Iterable[HealthProblem]:
    home = settings.state_home(chosen)
    if where is not None and clusters.is_master(where):
        with clusters.admin_at(master_url(where, tls=clusters.uses_tls(chosen)), chosen) as master:
            yield from masters.problems(master)
    elif where is not None:
        yield from of_mount(find_target(where, home).record, masters)
    else:
        yield from _of_everything(chosen, home, masters)


def _of_everything(chosen: Config, home: StateHome, masters: Masters) -> Iterable[HealthProblem]:
    for mount in read_mounts().ours():
        record = find_record(mount, home)
        if record is not None:
            yield from of_mount(record, masters)
        elif is_unserved(mount.mountpoint, None):
            yield from of_dead(mount.mountpoint)
    if clusters.is_cluster_configured(chosen):
        yield from masters.of_configured()


def no_answer(record: MountRecord, err: CacheFSError) -> HealthProblem:
    """Returns the problem of a mount whose server does not answer."""
    is_complete = err.path == record.mountpoint  # from `session.connected`
    cause = err.cause if is_complete else f"its server does not answer ({err.cause})"
    remedy = err.remedy or f"cachefs umount {shlex.quote(record.mountpoint)}, and mount it again"
    return problem("MOUNT_DEAD", record.mountpoint, cause, remedy)
