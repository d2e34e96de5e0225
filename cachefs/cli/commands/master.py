"""`cachefs master`: the master of a cluster, in the foreground."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import click

from cachefs.cli import clusters, output, settings
from cachefs.cli.commands import serving
from cachefs.core.access import is_loopback, parse_address
from cachefs.core.addresses import address_of
from cachefs.core.cluster import DEFAULT_PORT
from cachefs.core.config import Config
from cachefs.core.errors import BadConfig
from cachefs.core.specs import MasterSpec
from cachefs.launcher import state, tokens
from cachefs.launcher.cluster import start_master
from cachefs.launcher.state import StateHome, private_dir

_ENGINE: Final = "lmdb:"


@click.command("master")
@click.option("--background", is_flag=True, help="Return when it is ready; it logs to a file.")
@settings.command_options("master")
def command(background: bool, as_json: bool, chosen: Config) -> int:
    """Run the master of a cluster: its namespace, sources and members. Ctrl-C ends it.

    \b
    cachefs master        # for this machine alone
    cachefs master --listen 0.0.0.0:19998 --store lmdb:/srv/cachefs --token-file /etc/cachefs/token
    """
    spec = plan(chosen, settings.state_home(chosen), background=background)
    err_log = os.path.splitext(spec.log_file)[0] + ".err" if background else ""
    with serving.interruptible():
        started = start_master(spec, Path(err_log) if background else None)
        child = None if background else serving.Child(started.pid)
    with serving.even_unread():
        if started.warning:
            output.warn(started.warning)
        if as_json:
            facts = {"url": started.url, "pid": started.pid, "store": spec.store_dir}
            output.print_json_line(facts)
        else:
            click.echo(f"OK, the master is ready at {started.url} (pid {started.pid})")
        _print_token_hint(spec, started.url)
    return child.stay() if child is not None else 0


def _print_token_hint(spec: MasterSpec, url: str) -> None:
    """Prints on standard error how workers on other machines authenticate."""
    _, port = parse_address(address_of(url), DEFAULT_PORT)
    if spec.token_home and not is_loopback(parse_address(spec.listen, 0)[0]):
        path = tokens.path_of(StateHome(spec.token_home), port)
        print(
            f"cachefs: other machines need a copy of {path}, as their --token-file",
            file=sys.stderr,
        )


def plan(chosen: Config, home: StateHome, *, background: bool) -> MasterSpec:
    """Returns the spec of the master. Raises BadConfig."""
    clusters.check_authority(chosen)
    directory = home.master_dir()
    makes_token, security = clusters.makes_token(chosen), clusters.server_files(chosen)
    is_open = not makes_token and not security.token_file
    log = private_dir(directory / state.LOG_NAME)
    return MasterSpec(
        listen=chosen.text("master_listen"),
        store_dir=_store_dir(chosen.text("store")) or str(directory / state.NAMESPACE_NAME),
        security=security,
        token_home=str(home.path) if makes_token else "",
        open_home=str(home.path) if is_open else "",
        origin_deadline_s=chosen.seconds("origin_deadline"),
        lost_after_s=chosen.seconds("lost_after"),
        background_listings=chosen.integer("background_listings"),
        log_file=str(log / "master.log"),
        log_level=chosen.text("log_level"),
        log_to_stderr=not background,
        trust_directories=clusters.trusts(chosen),
    )


def _store_dir(text: str) -> str:
    if not text:
        return ""
    path = text.removeprefix(_ENGINE)
    if not text.startswith(_ENGINE) or not path:
        raise BadConfig(f"store: {text!r} is not a store", remedy=f"write it as {_ENGINE}DIR")
    return os.path.abspath(path)
