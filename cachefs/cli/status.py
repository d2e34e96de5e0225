"""`cachefs status`: what the servers say of themselves, for one mount or for all."""

from __future__ import annotations

import os
from typing import Any, Final

import click

from cachefs.cli import output, settings
from cachefs.cli.mounts import Mount, is_dead, read_mounts
from cachefs.cli.session import checked, connected, find_target
from cachefs.core import messages as m
from cachefs.core.errors import CacheFSError
from cachefs.launcher.state import MountRecord, StateHome

ASK_S: Final = 20.0


@click.command("status")
@click.argument("where", metavar="[MOUNTPOINT]", required=False)
@settings.setting_flags("status")
@output.json_flag
@output.debug_flag
def command(
    where: str | None, as_json: bool, debug: bool, config_file: str | None, **flags: Any
) -> None:
    """Mounts, processes, cache use by tier, hit and origin bytes; of all mounts, or of one."""
    home = settings.state_home(settings.load_settings(flags, config_file))
    if where is not None:
        tree = ask(find_target(where, home).record)
        _print([tree], as_json, tree)
        return
    trees = [_try(mount, home) for mount in read_mounts().ours()]
    _print(trees, as_json, trees)


def _print(trees: list[dict[str, Any]], as_json: bool, document: Any) -> None:
    if as_json:
        output.print_json(document)
        return
    if not trees:
        click.echo("nothing is mounted")
    for i, tree in enumerate(trees):
        if i:
            click.echo()
        for line in output.tree_lines(tree):
            click.echo(line)


def ask(record: MountRecord) -> dict[str, Any]:
    """The status tree of a mount's server, headed by the mount. Raises Unreachable."""
    with connected(record) as client:
        tree = checked(client.call(m.Status(), ASK_S), m.StatusReply).status
    state = "dead" if is_dead(record.mountpoint) else "ok"
    head = _head(record.mountpoint, record.source.url, state)
    return {**head, **_transport(tree, record.mountpoint), **tree}


def _transport(tree: dict[str, Any], mountpoint: str) -> dict[str, Any]:
    """How this mount speaks with the kernel; nothing while no client serves it."""
    for mount in tree.get("mounts", []):
        if mount.get("mountpoint") == mountpoint:
            return {name: mount[name] for name in ("transport", "passthrough") if name in mount}
    return {}


def _try(mount: Mount, home: StateHome) -> dict[str, Any]:
    """As `ask`, for a mount that may be dead or somebody else's."""
    record = home.find_mount(mount.mountpoint)
    if record is not None:
        try:
            return ask(record)
        except CacheFSError as err:
            state = "dead" if is_dead(mount.mountpoint) else "no answer"
            return {**_head(mount.mountpoint, record.source.url, state), "cause": err.cause}
    state = "dead" if is_dead(mount.mountpoint) else "not recorded here"
    return _head(mount.mountpoint, mount.source, state)


def _head(mountpoint: str, source: str, state: str) -> dict[str, Any]:
    shown = output.text_of(os.fsencode(mountpoint))
    return {"mountpoint": shown, "source": source, "state": state}
