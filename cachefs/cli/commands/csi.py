"""`cachefs csi`: the CSI node driver of Kubernetes, in the foreground."""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING, Final

import click

from cachefs.cli import output, settings
from cachefs.core.addresses import address_of, master_url
from cachefs.core.config import Config
from cachefs.core.errors import BadConfig, CannotMount
from cachefs.core.install import check_extra
from cachefs.launcher.logs import log_to

if TYPE_CHECKING:
    from cachefs.csi.driver import DriverSpec

MODULES: Final = ("grpc", "google.protobuf", "prometheus_client")  # of the extra "csi"
NEEDED: Final = ("endpoint", "master", "holder")


@click.command("csi")
@settings.command_options("csi")
def command(as_json: bool, chosen: Config) -> int:
    """Run the CSI driver csi.cachefs.io of this node: mount paths of the cluster, and bind them
    into pods. A stop signal ends it, and leaves all mounts. Needs root.

    \b
    cachefs csi --endpoint unix:/csi/csi.sock --master node1:19998 --holder /run/holder/holder.sock
    """
    check_extra("csi", MODULES, "the CSI driver")
    if os.geteuid() != 0:
        raise CannotMount("a CSI driver mounts", remedy="run it as root, in a privileged container")
    spec = plan(chosen)
    as_lines = chosen.text("log_format") == "json"
    log_to("", chosen.text("log_level"), to_stderr=True, as_json=as_lines)
    from cachefs.csi.driver import serve

    return serve(spec, lambda: _say_ready(spec, as_json))


def _say_ready(spec: DriverSpec, as_json: bool) -> None:
    if as_json:
        output.print_json_line({"node": spec.node_id, "socket": spec.socket, "pid": os.getpid()})
    else:
        click.echo(f"OK, the driver of {spec.node_id} serves {spec.socket}")
    sys.stdout.flush()


def plan(chosen: Config) -> DriverSpec:
    """Returns the driver's spec. Raises BadConfig."""
    from cachefs.csi.driver import DriverSpec  # imports gRPC
    from cachefs.csi.shared_mounts import Node

    for name in NEEDED:
        if not chosen.text(name):
            flag = f"--{name.replace('_', '-')}"
            raise BadConfig(f"{flag} is missing", remedy=f"give {flag}")
    kubelet_dir = os.path.normpath(chosen.text("kubelet_dir"))
    registration_dir = chosen.text("registration_dir")
    return DriverSpec(
        Node(kubelet_dir, chosen.text("holder")),
        node_id=chosen.text("node_id") or socket.gethostname(),
        master=address_of(master_url(chosen.text("master"), tls=False)),
        endpoint=chosen.text("endpoint"),
        registration_dir=registration_dir or os.path.join(kubelet_dir, "plugins_registry"),
        linger_s=chosen.seconds("linger"),
        metrics=chosen.text("node_metrics"),
        confine=chosen.switch("confine"),
    )
