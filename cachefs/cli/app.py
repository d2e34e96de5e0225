"""The commands of `cachefs`: their names, groups and one-line helps. A command's module is imported
only when that command runs, so that `cachefs --help` stays cheap."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Sequence
from typing import Any, Final

import click

import cachefs as package

GROUPS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "Mounts": {
        "mount": ("mount", "Mount a source: cachefs mount s3://bucket/prefix /mnt/data"),
        "umount": ("umount", "Unmount, and wait until its processes have ended."),
        "status": ("status", "What is mounted and cached, and how it is used."),
        "health": ("health", "What is wrong, with a cause and a remedy each."),
        "top": ("top", "A live table: hits by path, rates, fills, loads, evictions."),
        "logs": ("logs", "The logs of a mount's server and client."),
        "cache": ("cache", "What ended mounts left cached here: ls, rm."),
        "doctor": ("doctor", "Check this machine and clean up after crashes."),
    },
    "Files": {
        "ls": ("ls", "List names, and how much of each file is cached."),
        "stat": ("stat", "Everything known about one path."),
        "du": ("du", "How much there is below a path, and how much of it is cached."),
        "sync": ("sync", "Compare names with their origin now, and say what changed."),
    },
    "The cache": {
        "load": ("load", "Bring files into the cache."),
        "jobs": ("jobs", "The load jobs: list, show, stop, resume, retry, forget."),
        "free": ("free", "Drop cached bytes; names stay."),
        "pin": ("pin", "Load what is at or below a path, and never evict it."),
        "unpin": ("unpin", "Let what was pinned be evicted again."),
        "ttl": ("ttl", "Free what was brought in longer ago than that: cachefs ttl PATH 7d."),
        "quota": ("quota", "Limit how much of what is below a path may be cached."),
        "policy": ("policy", "The policies of a path: show, set, unset."),
    },
    "Clusters": {
        "up": ("up", "Start a whole cluster on this machine."),
        "down": ("down", "End the cluster on this machine."),
        "master": ("master", "Run the master of a cluster."),
        "worker": ("worker", "Run this node's worker, a member of a cluster."),
        "ufs": ("ufs", "The sources of a cluster: add, ls, rm."),
        "workers": ("workers", "The workers of a cluster: list, drain, remove."),
        "location": ("location", "Which workers own a file's blocks, and who has them."),
        "fsck": ("fsck", "Check that what is cached is where it belongs, and right."),
    },
    "This program": {
        "config": ("config_cmd", "Every setting, its value and where it came from."),
        "version": ("version", "The version of cachefs."),
    },
}
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    name: command for group in GROUPS.values() for name, command in group.items()
}
# The verbs of Alluxio, JuiceFS and others, with the command that does the same here.
VERBS_ELSEWHERE: Final[dict[str, str]] = {
    "checkConsistency": "sync --dry-run",
    "decommissionWorker": "workers drain",
    "distributedLoad": "load",
    "fsadmin": "status",
    "getConf": "config --source",
    "help": "--help",
    "info": "stat",
    "loadMetadata": "sync",
    "prefetch": "load",
    "report": "status",
    "setReplication": "policy set PATH replicas=N",
    "setTtl": "ttl",
    "stats": "top",
    "summary": "du",
    "unmount": "umount",
    "unsetTtl": "ttl PATH none",
    "warmup": "load",
}


class LazyGroup(click.Group):
    """Knows its commands by name; a command's module has its click command as `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"cachefs.cli.commands.{COMMANDS[cmd_name][0]}")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolves as click does; raises UsageError with a suggestion for an unknown command."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            raise click.UsageError(f"no such command {args[0]!r}{suggestion(args[0])}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(width), text) for name, (_, text) in commands.items()]
                )


def suggestion(word: str) -> str:
    """Returns the end of a message that names the command which `word` may stand for, or ""."""
    elsewhere = {verb.lower(): command for verb, command in VERBS_ELSEWHERE.items()}
    if word.lower() in elsewhere:
        return f"; here it is `cachefs {elsewhere[word.lower()]}`"
    close = difflib.get_close_matches(word.lower(), COMMANDS, n=1)
    return f"; did you mean `cachefs {close[0]}`?" if close else ""


def _show_version(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"cachefs {package.__version__}")
        ctx.exit()


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show the traceback of a failure.")
@click.option(
    "-V",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version.",
)
def cachefs(debug: bool) -> None:
    """Object stores as a local file system, with warm bytes from RAM and SSD."""


def run(args: Sequence[str]) -> int:
    """Run one command line; what goes wrong is raised, for `cachefs.cli.edge`."""
    result = cachefs.main(args=list(args), prog_name="cachefs", standalone_mode=False)
    return result if isinstance(result, int) else 0
