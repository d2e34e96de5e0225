"""The commands of `cachefs`: names, groups and one-line helps. A command's module is imported when
the command runs, so that `cachefs --help` stays fast."""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Sequence
from typing import Any, Final

import click

import cachefs as package

GROUPS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "Mounts": {
        "mount": ("mount", "Mount a source: cachefs mount s3://bucket/prefix /mnt/data"),
        "umount": ("umount", "Unmount, and wait until its processes have ended."),
        "status": ("status", "Show the mounts, the caches and their use."),
        "health": ("health", "List the problems, each with its cause and remedy."),
        "top": ("top", "Show a live table: hits by path, rates, fills, loads, evictions."),
        "logs": ("logs", "Show the logs of a mount's server and client."),
        "cache": ("cache", "Manage what ended mounts left cached here: ls, rm."),
        "doctor": ("doctor", "Check this machine and clean up after crashes."),
    },
    "Files": {
        "ls": ("ls", "List names, and how much of each file is cached."),
        "stat": ("stat", "Show everything known about one path."),
        "du": ("du", "Show the size of a tree, and how much of it is cached."),
        "sync": ("sync", "Compare names with their origin now, and list the changes."),
    },
    "The cache": {
        "load": ("load", "Load files into the cache."),
        "jobs": ("jobs", "Manage load jobs: list, show, stop, resume, retry, forget."),
        "free": ("free", "Free cached data; names stay."),
        "order": ("order", "Announce in which order files will be opened."),
        "pin": ("pin", "Load a file or a tree, and never evict it."),
        "unpin": ("unpin", "Remove a pin: let the files be evicted again."),
        "freeze": ("freeze", "Let the kernel alone show a directory that is complete here."),
        "thaw": ("thaw", "End that; changes and evictions are possible again."),
        "views": ("views", "List the covered directories and their state."),
        "view": ("view", "Print where the files of a directory are cached."),
        "ttl": ("ttl", "Free cached data of a path after a time: cachefs ttl PATH 7d."),
        "quota": ("quota", "Limit how many bytes below a path may be cached."),
        "policy": ("policy", "Manage the policies of a path: show, set, unset."),
    },
    "Clusters": {
        "up": ("up", "Start a whole cluster on this machine."),
        "down": ("down", "End the cluster on this machine."),
        "master": ("master", "Run the master of a cluster."),
        "worker": ("worker", "Run this node's worker, a member of a cluster."),
        "ufs": ("ufs", "Manage the sources of a cluster: add, set, ls, rm."),
        "workers": ("workers", "Manage the workers of a cluster: list, drain, remove."),
        "location": ("location", "Show which workers own and which cache a file's blocks."),
        "fsck": ("fsck", "Verify the location and checksums of cached data."),
    },
    "Kubernetes": {
        "csi": ("csi", "Run the CSI driver of this node."),
        "fuse-agent": ("fuse_agent", "Serve the mounts of this node's pods."),
        "operator": ("operator", "Manage Datasets: sources, loads, volumes, waiting pods."),
    },
    "This program": {
        "bench": ("bench", "Measure this machine: accelerators kept busy by a mount."),
        "config": ("config_cmd", "Show every setting, its value and its source."),
        "version": ("version", "Show the version of cachefs."),
    },
}
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    name: command for group in GROUPS.values() for name, command in group.items()
}
COMPLETION: Final = "_CACHEFS_COMPLETE"  # set by a shell that completes a command line
# The verbs of Alluxio, JuiceFS and others, with the equivalent command.
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
    """A group of lazily imported commands: each module has its click command as `command`."""

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
    """Returns the end of a message that names the command which `word` may mean, or ""."""
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
    """Mount object stores as a local file system that caches data in RAM and on SSD."""


def run(args: Sequence[str]) -> int:
    """Runs one command line and returns its exit code; failures are raised, for
    `cachefs.cli.error_output`."""
    if COMPLETION in os.environ:
        cachefs.main(args=list(args), prog_name="cachefs")  # ends the process
    # `main` would end with 1, as after a failure, where nobody reads the output.
    with cachefs.make_context("cachefs", list(args)) as context:
        result = cachefs.invoke(context)
    return result if isinstance(result, int) else 0
