"""`cachefs csi`: the CSI node driver of Kubernetes, in the foreground."""

from __future__ import annotations

import importlib.util
import os
from typing import Any, Final

import click

from cachefs.cli import output
from cachefs.core.access import join_address, parse_address
from cachefs.core.cluster import DEFAULT_PORT
from cachefs.core.errors import BadConfig, CannotMount, Unsupported
from cachefs.core.install import install_command
from cachefs.core.units import parse_duration
from cachefs.launcher.logs import log_to

KUBELET_DIR: Final = "/var/lib/kubelet"
MODULES: Final = ("grpc", "google.protobuf", "prometheus_client")  # of the extra "csi"


@click.command("csi")
@click.option("--endpoint", required=True, metavar="unix:PATH", help="The socket to serve.")
@click.option("--node-id", required=True, help="The name of this node.")
@click.option("--master", required=True, metavar="HOST:PORT", help="The cluster of this node.")
@click.option("--worker-socket", required=True, metavar="PATH", help="The socket of the worker.")
@click.option("--holder", required=True, metavar="PATH", help="The socket of the holder.")
@click.option("--kubelet-dir", default=KUBELET_DIR, show_default=True, metavar="DIR")
@click.option("--registration-dir", metavar="DIR", help="Default: plugins_registry of the kubelet.")
@click.option(
    "--home", metavar="DIR", help="State home of the clients. Default: beside the mounts."
)
@click.option(
    "--worker-wait", default="10m", show_default=True, help="How long files wait for the worker."
)
@click.option("--linger", default="60s", show_default=True, help="How long an unused mount stays.")
@click.option(
    "--confine", is_flag=True, help="Inline volumes show only data below their pod's namespace."
)
@click.option("--metrics", default="", metavar="ADDR", help="unix:PATH or HOST:PORT.")
@click.option("--log-level", default="info", type=click.Choice(["debug", "info", "warning"]))
@click.option("--log-format", default="text", type=click.Choice(["text", "json"]))
@output.debug_flag
def command(debug: bool, log_level: str, log_format: str, **given: Any) -> int:
    """Run the CSI driver csi.cachefs.io of this node: mount paths of the cluster, and bind them
    into pods. It needs root. SIGTERM ends it, and leaves all mounts.

    \b
    cachefs csi --endpoint unix:/csi/csi.sock --node-id node1 --master master:19998 \\
        --worker-socket /run/cachefs/worker.sock --holder /run/cachefs/holder/holder.sock
    """
    check_extra()
    from cachefs.csi.driver import serve  # imports gRPC

    if os.geteuid() != 0:
        raise CannotMount("a CSI driver mounts", remedy="run it as root, in a privileged container")
    log_to("", log_level, to_stderr=True, as_json=log_format == "json")
    return serve(_spec(log_level, **given))


def check_extra() -> None:
    """Raises Unsupported if this installation lacks the packages of the driver."""
    missing = [name for name in MODULES if not _is_installed(name)]
    if missing:
        raise Unsupported(
            f"the CSI driver needs the extra csi ({', '.join(missing)})",
            remedy=install_command("csi"),
        )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent is missing
        return False


def _spec(log_level: str, **given: Any) -> Any:
    from cachefs.csi.driver import DriverSpec
    from cachefs.csi.shared_mounts import DRIVER, Node

    kubelet_dir = os.path.normpath(os.path.abspath(given["kubelet_dir"]))
    node = Node(
        kubelet_dir,
        worker_socket=given["worker_socket"],
        holder=given["holder"],
        home=given["home"] or os.path.join(kubelet_dir, "plugins", DRIVER, "home"),
        worker_wait_s=_seconds("--worker-wait", given["worker_wait"]),
        log_level=log_level,
    )
    host, port = parse_address(given["master"], DEFAULT_PORT)
    return DriverSpec(
        node,
        node_id=given["node_id"],
        master=join_address(host, port),
        endpoint=given["endpoint"],
        registration_dir=given["registration_dir"] or os.path.join(kubelet_dir, "plugins_registry"),
        linger_s=_seconds("--linger", given["linger"]),
        metrics=given["metrics"],
        confine=given["confine"],
    )


def _seconds(flag: str, text: str) -> float:
    seconds = parse_duration(text)
    if seconds < 0:
        raise BadConfig(f"{flag} {text}: not a duration", remedy="write it as 60s or 10m")
    return seconds
