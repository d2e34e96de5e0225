"""`umount.fuse.cachefs`: the helper of umount(8) for mounts of CacheFS. A directory below the mount
point may be covered, and the kernel refuses to unmount what has other mounts below it."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Final

import click
import msgspec

from cachefs.cli import error_output

NAME: Final = "umount.fuse.cachefs"
USAGE: Final = f"usage: {NAME} DIRECTORY [-flnrv] [-N NAMESPACE] [-t TYPE]"


class UmountArguments(msgspec.Struct, frozen=True):
    """The parsed arguments of umount(8)."""

    place: str
    lazy: bool = False


def parse_arguments(argv: Sequence[str]) -> UmountArguments:
    """Parses what umount(8) passes on. `-f` has no meaning of its own here. Raises
    click.UsageError."""
    places: list[str] = []
    lazy = False
    rest = iter(argv)
    for word in rest:
        if word in ("-N", "-t"):
            next(rest, None)
        elif re.fullmatch(r"-[flnrv]+", word):
            lazy = lazy or "l" in word
        elif word.startswith("-"):
            raise click.UsageError(f"unknown option {word}; {USAGE}")
        else:
            places.append(word)
    if len(places) != 1:
        raise click.UsageError(USAGE)
    return UmountArguments(places[0], lazy)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the helper and returns the exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    return error_output.run(NAME, lambda: _umount(args), debug=False)


def _umount(args: Sequence[str]) -> int:
    arguments = parse_arguments(args)
    from cachefs.cli import settings
    from cachefs.cli.commands.umount import unmount

    home = settings.state_home(settings.load_settings({}, None))
    _, note = unmount(arguments.place, home, lazy=arguments.lazy)
    if note:
        print(f"{NAME}: warning: {note}", file=sys.stderr)
    return 0
