"""`cachefs mount`: checks, starts the server and the client, and reports when it is ready."""

from __future__ import annotations

import os
import time
from typing import Any, Final

import click
import msgspec

from cachefs.cli import clusters, detach, mountpoint, output, settings, transport
from cachefs.cli.commands import serving, take_over
from cachefs.cli.commands.foreground import Foreground
from cachefs.cli.server_plans import server_spec, source_spec
from cachefs.client.blocking import BlockingClient
from cachefs.core import messages as m
from cachefs.core.addresses import is_cluster
from cachefs.core.config import Config
from cachefs.core.errors import CacheFSError, Unreachable, Unsupported
from cachefs.core.mountinfo import read_mounts
from cachefs.core.specs import ClientSpec, MasterAccess, Started
from cachefs.fuse import mount_flags
from cachefs.launcher import processes
from cachefs.launcher.cluster import ensure_node
from cachefs.launcher.directories import check_own
from cachefs.launcher.processes import ProcessId, Server, Watch
from cachefs.launcher.state import StateHome

STOP_WAIT_S: Final = 15.0
ASK_S: Final = 5.0
JOIN_TRIES: Final = 3
OF_SERVER: Final = (  # settings of which a running server reports no difference itself
    "cache_size",
    "memory_limit",
    "metrics",
    "admin_socket",
    "background_listings",
    "admission",
    "eviction",
    "idle_after",
    "files_ahead",
    "origin_deadline",
)
ENDING_S: Final = 3.0  # a server that is ending, or was killed, fails a mount within this time


@click.command("mount")
@click.argument("source", required=False)
@click.argument("where", metavar="MOUNTPOINT", required=False)
@click.option("-f", "--foreground", is_flag=True, help="Stay in the foreground; Ctrl-C unmounts.")
@click.option("--upgrade", is_flag=True, help="Let this version take over the mount DIR.")
@click.option("--all", "every", is_flag=True, help="With --upgrade: every mount of this user.")
@settings.setting_flags("mount")
@output.json_flag
@click.option("--debug", is_flag=True, help=output.DEBUG_HELP)
def command(
    source: str | None,
    where: str | None,
    foreground: bool,
    upgrade: bool,
    every: bool,
    as_json: bool,
    debug: bool,
    config_file: str | None,
    **flags: Any,
) -> int:
    """Mount SOURCE (s3://bucket/prefix, file:///path, cachefs://master:port/path of a cluster) on
    the empty directory MOUNTPOINT.

    \b
    cachefs mount s3://bucket/train /mnt/data --cache-dir /ssd/cachefs
    cachefs mount cachefs://master:19998/imagenet /mnt/imagenet
    cachefs mount --upgrade /mnt/data      # after a package upgrade; readers continue
    cachefs mount --upgrade --all          # every mount of this user; exit code 1 if one failed
    """
    chosen = settings.load_settings(flags, config_file)
    if every and (source or not upgrade):
        raise click.UsageError("--all is for --upgrade, without a mount point")
    if upgrade and every:
        return take_over.perform_all(settings.state_home(chosen), as_json=as_json)
    if source is None:
        raise click.UsageError("Missing argument 'SOURCE'.")
    if upgrade:
        return take_over.perform(where or source, settings.state_home(chosen), as_json=as_json)
    if where is None:
        raise click.UsageError("Missing argument 'MOUNTPOINT'.")
    return perform(source, where, chosen, foreground=foreground, as_json=as_json, debug=debug)


def perform(
    source: str,
    where: str,
    chosen: Config,
    *,
    foreground: bool = False,
    as_json: bool = False,
    debug: bool = False,
    mount_options: tuple[str, ...] = (),
) -> int:
    """Mounts, in the foreground until the mount ends, and returns the exit code. Raises the typed
    errors; then nothing new is left mounted or running."""
    mount_flags.check(mount_options)
    client = plan(source, where, chosen, foreground=foreground, debug=debug)
    client = msgspec.structs.replace(client, mount_options=mount_options)
    with (
        output.announced(f"waiting for {client.source.url}; Ctrl-C ends this"),
        serving.interruptible(),
        mountpoint.reserved(client.mountpoint, StateHome(client.home)),
    ):
        server, started = _start(client, foreground)
        front = Foreground(client, started.pid) if foreground else None
    with serving.even_unread():
        for warning in dict.fromkeys([server.warning, started.warning, _ignored(server, chosen)]):
            if warning:
                output.warn(warning)
        _say_ready(client, server, started, as_json)
    return front.stay() if front is not None else 0


def _ignored(server: Server, chosen: Config) -> str:
    """Returns a warning that names the flags which a running server does not take; "" if none."""
    flags = [f"--{name.replace('_', '-')}" for name in OF_SERVER if chosen.is_flag(name)]
    if server.started or not flags:
        return ""
    kept = "the running server keeps its settings until it is started again"
    return f"without effect: {', '.join(flags)}; {kept}"


def plan(source: str, where: str, chosen: Config, *, foreground: bool, debug: bool) -> ClientSpec:
    """Returns the spec of the client, which has that of the server. Checks everything that can be
    checked before a process is started."""
    ufs = source_spec(source, chosen)
    if not chosen.switch("read_only"):
        raise Unsupported(
            f"{chosen['read_only'].source}: this version mounts read-only",
            remedy="leave read_only out, or set it to yes",
        )
    allow_other = chosen.switch("allow_other", undecided=os.geteuid() == 0)
    mountpoint.check_machine(allow_other)
    taken = transport.choose(
        chosen.text("transport"), chosen.text("passthrough"), transport.Machine.here()
    )
    home = settings.state_home(chosen)
    check_own(home.path, trust=clusters.trusts(chosen))
    path = mountpoint.prepare(where, home)
    in_cluster = is_cluster(ufs.url)
    _check_sockets(chosen, in_cluster)
    worker_socket = chosen.text("worker_socket")
    starts_worker = in_cluster and not worker_socket
    return ClientSpec(
        home=str(home.path),
        socket=worker_socket,
        source=ufs,
        mountpoint=path,
        sync_interval_s=chosen.seconds("sync_interval"),
        allow_other=allow_other,
        default_permissions=allow_other,
        uid=chosen.integer("uid"),
        gid=chosen.integer("gid"),
        file_mode=chosen.integer("file_mode"),
        dir_mode=chosen.integer("dir_mode"),
        transport=taken.transport,
        passthrough=chosen.text("passthrough"),
        log_file=processes.client_log(home, ufs, path),
        log_level=chosen.text("log_level"),
        log_to_stderr=foreground,
        debug=debug,
        server=None
        if in_cluster
        else server_spec(ufs, str(home.path), chosen, foreground=foreground),
        node=clusters.mounts_node(ufs.url, home, chosen, foreground) if starts_worker else None,
        worker_wait_s=chosen.seconds("worker_wait") if worker_socket else 0.0,
        heartbeat_timeout_s=chosen.seconds("heartbeat_timeout"),
        master_access=clusters.access(chosen) if in_cluster else MasterAccess(),
    )


def _check_sockets(chosen: Config, in_cluster: bool) -> None:
    if chosen.text("worker_socket") and not in_cluster:
        raise Unsupported(
            f"{chosen['worker_socket'].source}: only a mount of a cluster uses a worker",
            remedy="mount cachefs://MASTER:PORT/PATH",
        )
    if chosen.text("admin_socket") and in_cluster:
        raise Unsupported(
            f"{chosen['admin_socket'].source}: a mount of a cluster has no admin socket",
            remedy="ask its master, on the port of its calls",
        )


def _start(client: ClientSpec, foreground: bool) -> tuple[Server, Started]:
    for _ in range(JOIN_TRIES):
        began_s = time.monotonic()
        try:
            server = _find_server(client)
            began_s = time.monotonic()
            return server, _start_client(client, server, foreground)
        except Unreachable:
            if time.monotonic() - began_s > ENDING_S:
                raise  # its origin or master is unreachable: a retry would fail too
        # The server was ending with its last mount, or was killed: join or start another one.
    server = _find_server(client)
    return server, _start_client(client, server, foreground)


def _find_server(client: ClientSpec) -> Server:
    """Returns the server to use; starts it if none runs and the mount names none."""
    if client.worker_wait_s:
        return Server(client.socket, False, "")
    if client.node is not None:
        clusters.check_master(client.node)
        return ensure_node(client.node)
    assert client.server is not None
    return processes.ensure_server(client.server)


def _start_client(client: ClientSpec, server: Server, foreground: bool) -> Started:
    spec = msgspec.structs.replace(client, socket=server.socket)
    try:
        return processes.start_client(spec, foreground)
    except BaseException:  # Ctrl-C too: undo the start
        _undo(spec, server)
        raise


def _undo(spec: ClientSpec, server: Server) -> None:
    """Removes what a failed start left: the mount, its record, a server without mounts."""
    left = read_mounts().at(spec.mountpoint)
    if left is not None and left.is_cachefs:
        detach.detach(spec.mountpoint, lazy=True)
    if server.started:
        stop_if_unused(server.socket)


def stop_if_unused(socket: str) -> None:
    """Stops a server without mounts and libraries, and waits for its end."""
    try:
        with BlockingClient.connect(socket) as client:
            reply = client.call(m.Status(), ASK_S)
            if not isinstance(reply, m.StatusReply) or _is_used(reply.status):
                return
            watches = [Watch(ProcessId(pid)) for pid in _server_pids(reply.status)]
            client.call(m.Detach("nothing is mounted"), ASK_S)
    except (CacheFSError, OSError):
        return  # it has ended, or ends when no mount joins it
    for watch in watches:
        with watch:
            watch.ended(STOP_WAIT_S)


def _is_used(status: dict[str, Any]) -> bool:
    return bool(status.get("mounts") or status.get("libraries"))


def _server_pids(status: dict[str, Any]) -> list[int]:
    beside = ("client", "supervisor")
    return [p["pid"] for p in status.get("processes", []) if p.get("role") not in beside]


def _say_ready(spec: ClientSpec, server: Server, started: Started, as_json: bool) -> None:
    shown = output.text_of(os.fsencode(spec.mountpoint))
    if not as_json:
        click.echo(f"OK, {spec.source.url} is ready at {shown}")
    else:
        facts: dict[str, Any] = {"source": spec.source.url, "mountpoint": shown}
        facts["transport"] = spec.transport
        facts |= {"pid": started.pid, "socket": server.socket, "server_started": server.started}
        warnings = [text for text in (server.warning, started.warning) if text]
        output.print_json_line(facts | {"warnings": warnings})
