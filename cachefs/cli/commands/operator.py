"""`cachefs operator`: the controller of Datasets in Kubernetes, in the foreground."""

from __future__ import annotations

import os
import socket
from typing import Final, NoReturn

import click
import msgspec

from cachefs.cli import clusters, settings
from cachefs.core.addresses import address_of
from cachefs.core.config import Config
from cachefs.core.install import check_extra
from cachefs.kube.rules import Rules
from cachefs.kube.spec import OperatorSpec
from cachefs.launcher.processes import module_command
from cachefs.launcher.stdin_document import standard_input

MODULE: Final = "cachefs.kube"
MODULES: Final = ("aiohttp", "kopf", "prometheus_client")  # of the extra "kube"


@click.command("operator")
@settings.command_options("operator")
def command(as_json: bool, chosen: Config) -> int:
    """Run the controller of Kubernetes: attach and load the source of each Dataset, make its
    volume and those of claims, and let pods be scheduled whose data is loaded. Of several replicas
    one acts. A stop signal ends it, and leaves everything as it is.

    \b
    cachefs operator --master cachefs-master:19998 --token-file /etc/cachefs/token
    """
    check_extra("kube", MODULES, "the controller")
    _become(plan(chosen, as_json=as_json))


def plan(chosen: Config, *, as_json: bool = False) -> OperatorSpec:
    """Returns the controller's spec. Raises BadConfig."""
    master = clusters.master_of(chosen)
    return OperatorSpec(
        master=master,
        address=address_of(master),
        name=chosen.text("replica_name") or f"{socket.gethostname()}-{os.getpid()}",
        namespace=chosen.text("lease_namespace"),
        security=clusters.security(chosen, master),
        rules=Rules(
            file_sources=chosen.switch("file_sources"),
            own_profiles=chosen.switch("own_profiles"),
            confine=chosen.switch("confine"),
        ),
        metrics=chosen.text("node_metrics"),
        log_level=chosen.text("log_level"),
        log_json=chosen.text("log_format") == "json",
        says_json=as_json,
    )


def _become(spec: OperatorSpec) -> NoReturn:
    """Replaces this process by the controller, which keeps its number and gets its signals."""
    with standard_input(msgspec.json.encode(spec)) as document:
        os.dup2(document, 0)
    command = module_command(MODULE)
    os.execv(command[0], command)
