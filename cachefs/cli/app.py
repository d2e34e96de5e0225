"""The commands of `cachefs`: their names and one-line helps. A command's module is imported only
when that command runs, so that `cachefs --help` stays cheap."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Final

import click

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "mount": ("mount", "Mount a source: cachefs mount s3://bucket/prefix /mnt/data"),
    "umount": ("umount", "Unmount, and wait until its processes have ended."),
    "status": ("status", "What is mounted and cached, and how it is used."),
    "top": ("top", "A live table: hits by path, rates, fills, loads, evictions."),
    "ls": ("ls", "List names, and how much of each file is cached."),
    "stat": ("stat", "Everything known about one path."),
    "load": ("load", "Bring files into the cache."),
    "jobs": ("jobs", "The load jobs: list, show, stop, resume, retry, forget."),
    "sync": ("sync", "Compare names with their origin now, and say what changed."),
    "free": ("free", "Drop cached bytes; names stay."),
    "pin": ("pin", "Load what is at or below a path, and never evict it."),
    "unpin": ("unpin", "Let what was pinned be evicted again."),
    "ttl": ("ttl", "Free what was brought in longer ago than that: cachefs ttl PATH 7d."),
    "du": ("du", "How much there is below a path, and how much of it is cached."),
    "quota": ("quota", "Limit how much of what is below a path may be cached."),
    "policy": ("policy", "The policies of a path: show, set, unset."),
    "master": ("master", "Run the master of a cluster."),
    "worker": ("worker", "Run this node's worker, a member of a cluster."),
    "up": ("up", "Start a whole cluster on this machine."),
    "down": ("down", "End the cluster on this machine."),
    "ufs": ("ufs", "The sources of a cluster: add, ls, rm."),
    "workers": ("workers", "The workers of a cluster: list, drain, remove."),
    "location": ("location", "Which workers own a file's blocks, and who has them."),
    "fsck": ("fsck", "Check that what is cached is where it belongs, and right."),
    "config": ("config_cmd", "Every setting, its value and where it came from."),
    "doctor": ("doctor", "Check this machine and clean up after crashes."),
    "version": ("version", "The version of cachefs."),
}


class LazyGroup(click.Group):
    """Knows its commands by name; a command's module has its click command as `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"cachefs.cli.{COMMANDS[cmd_name][0]}")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help) for name, (_, help) in COMMANDS.items()])


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show the traceback of a failure.")
def cachefs(debug: bool) -> None:
    """Object stores as a local file system, with warm bytes from RAM and SSD."""


def run(args: Sequence[str]) -> int:
    """Run one command line; what goes wrong is raised, for `cachefs.cli.edge`."""
    result = cachefs.main(args=list(args), prog_name="cachefs", standalone_mode=False)
    return result if isinstance(result, int) else 0
