"""`cachefs fuse-agent`: serves the mounts of a node's pods, in the foreground."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from typing import TYPE_CHECKING

import click

from cachefs.cli import output, settings
from cachefs.core.config import Config
from cachefs.core.errors import BadConfig, Unsupported
from cachefs.core.install import install_command
from cachefs.fuse.agent.agent import Agent, AgentSpec
from cachefs.launcher.logs import log_to
from cachefs.launcher.state import private_dir

if TYPE_CHECKING:
    from cachefs.launcher.metrics_page import MetricsPage


@click.command("fuse-agent")
@settings.command_options("fuse-agent")
def command(as_json: bool, chosen: Config) -> int:
    """Serve every mount that the holder of this node has: the driver `cachefs csi` makes them. A
    stop signal leaves the mounts to the next agent. Needs CAP_SYS_ADMIN.

    \b
    cachefs fuse-agent --holder /run/holder/holder.sock --worker-socket /run/worker/worker.sock
    """
    spec = plan(chosen)
    log_to("", spec.log_level, to_stderr=True, as_json=spec.log_json)
    agent = Agent(spec)
    page = _page(chosen.text("node_metrics"), agent)
    if as_json:
        output.print_json_line({"name": spec.name, "pid": os.getpid(), "holder": spec.holder})
    else:
        click.echo(f"OK, the agent {spec.name} serves the mounts of {spec.holder}")
    sys.stdout.flush()
    try:
        return agent.run()
    finally:
        if page is not None:
            page.close()


def _page(address: str, agent: Agent) -> MetricsPage | None:
    """Returns the page of the agent's metrics, which listens. Raises BadConfig, Unsupported."""
    if not address:
        return None
    if importlib.util.find_spec("prometheus_client") is None:
        raise Unsupported("--metrics needs the extra csi", remedy=install_command("csi"))
    from cachefs.fuse.agent.metrics import registry_of
    from cachefs.launcher.metrics_page import MetricsPage

    page = MetricsPage(address, registry_of(agent.facts), lambda: agent.is_healthy)
    page.start()
    return page


def plan(chosen: Config) -> AgentSpec:
    """Returns the agent's spec. Raises BadConfig."""
    for name in ("holder", "worker_socket"):
        if not chosen.text(name):
            flag = f"--{name.replace('_', '-')}"
            raise BadConfig(f"{flag} is missing", remedy=f"give {flag} PATH")
    return AgentSpec(
        holder=chosen.text("holder"),
        worker_socket=chosen.text("worker_socket"),
        home=str(private_dir(settings.state_home(chosen).path)),
        name=chosen.text("agent_name") or socket.gethostname(),
        worker_wait_s=chosen.seconds("worker_wait"),
        give_up_s=chosen.seconds("give_up_after"),
        memory_budget_bytes=chosen.integer("client_memory"),
        log_level=chosen.text("log_level"),
        log_json=chosen.text("log_format") == "json",
        ready_file=chosen.text("ready_file"),
    )
