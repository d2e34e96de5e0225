"""`mount.cachefs`: the helper of mount(8) for `mount -t cachefs SOURCE MOUNTPOINT -o OPTIONS`, and
for fstab lines of that type."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Final

import click
import msgspec

from cachefs.cli import error_output
from cachefs.core.config import find_setting
from cachefs.core.errors import BadConfig
from cachefs.core.setting import Scalar, Type
from cachefs.core.settings import BY_NAME
from cachefs.fuse import mount_flags

USAGE: Final = "usage: mount.cachefs SOURCE MOUNTPOINT [-o OPTION[=VALUE][,...]]"
# Options of mount(8), fstab(5) and systemd that have no effect here: a mount is always nosuid and
# nodev.
_GENERIC_NAMES: Final = (
    "rw auto noauto _netdev nofail defaults nouser nousers owner group suid nosuid dev nodev"
    " default_permissions"
)
GENERIC: Final = frozenset(_GENERIC_NAMES.split()) | mount_flags.NAMES
_GENERIC_VALUED: Final = ("x-", "X-", "comment=", *mount_flags.CONTEXTS)


class Arguments(msgspec.Struct, frozen=True):
    """The parsed arguments of mount(8)."""

    source: str
    mountpoint: str
    flags: dict[str, Scalar]
    config_file: str | None = None
    debug: bool = False
    fake: bool = False
    mount_options: tuple[str, ...] = ()  # applied by the kernel


def parse_arguments(argv: Sequence[str]) -> Arguments:
    """Parses `SOURCE MOUNTPOINT [-sfnv] [-N ns] [-t type] [-o options]`. Raises click.UsageError
    and BadConfig."""
    places: list[str] = []
    options: list[str] = []
    fake = False
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word in ("-o", "-t", "-N"):
            if not rest:
                raise click.UsageError(f"{word} needs a value; {USAGE}")
            value = rest.pop(0)
            options += _split(value) if word == "-o" else []
        elif re.fullmatch(r"-[sfnvw]+", word):
            fake = fake or "f" in word
        elif word.startswith("-"):
            raise click.UsageError(f"unknown option {word}; {USAGE}")
        else:
            places.append(word)
    if len(places) != 2:
        raise click.UsageError(USAGE)
    return _with_options(Arguments(places[0], places[1], {}, fake=fake), options)


def _split(text: str) -> list[str]:
    """Returns the options. A comma after a backslash, or in double quotes, is part of a value."""
    parts = re.split(r'(?<!\\),(?=(?:[^"]*"[^"]*")*[^"]*$)', text)
    return [part.replace("\\,", ",") for part in parts if part]


def _with_options(arguments: Arguments, options: Sequence[str]) -> Arguments:
    flags: dict[str, Scalar] = {}
    config_file, debug = None, False
    for option in options:
        name, separator, value = option.partition("=")
        if option in GENERIC or option.startswith(_GENERIC_VALUED):
            continue
        if name == "config":
            config_file = value
        elif name == "debug":
            debug = True
        else:
            flags |= _flag(name, value if separator else None)
    return msgspec.structs.replace(
        arguments,
        flags=flags,
        config_file=config_file,
        debug=debug,
        mount_options=mount_flags.collect(options),
    )


def _flag(name: str, value: str | None) -> dict[str, Scalar]:
    if name == "ro":
        return {"read_only": True}
    if name == "remount":
        raise BadConfig("remount is not possible", remedy="unmount, then mount again")
    negated = name.replace("-", "_").removeprefix("no_")
    if negated in BY_NAME and negated != name.replace("-", "_") and value is None:
        return {negated: False}
    setting = find_setting(name, "-o")
    if value is None and setting.type is not Type.SWITCH:
        raise BadConfig(f"-o: option {name!r} needs a value", remedy=f"write {name}=VALUE")
    return {setting.name: True if value is None else value}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the helper and returns the exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    return error_output.run("mount.cachefs", lambda: _mount(args), debug=False)


def _mount(args: Sequence[str]) -> int:
    arguments = parse_arguments(args)
    from cachefs.cli import server_plans, settings
    from cachefs.cli.commands import mount

    chosen = settings.load_settings(arguments.flags, arguments.config_file)
    if arguments.fake:
        server_plans.source_spec(arguments.source, chosen)
        return 0
    return mount.perform(
        arguments.source,
        arguments.mountpoint,
        chosen,
        debug=arguments.debug,
        mount_options=arguments.mount_options,
    )


if __name__ == "__main__":
    sys.exit(main())
