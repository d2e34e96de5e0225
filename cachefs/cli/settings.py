"""Loads the `Config` from flags, environment and files; nothing else in the CLI reads them."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Callable, Mapping
from typing import Any, Final

import click

from cachefs.cli import output
from cachefs.core import config
from cachefs.core.config import Config, TomlFile
from cachefs.core.errors import BadConfig
from cachefs.core.setting import KNOWN, LIST_SEPARATOR, Scalar, Setting, Type
from cachefs.core.settings import BY_NAME, SETTINGS
from cachefs.launcher.state import StateHome

Command = Callable[..., Any]
OF_MOUNT: Final = "the mount"  # the source of a value that the record of a mount has


def setting_flags(command: str) -> Callable[[Command], Command]:
    """Adds --config and a flag for every setting that `command` takes."""
    assert command in KNOWN, command

    def decorate(function: Command) -> Command:
        for setting in reversed(SETTINGS):
            if command in setting.commands:
                function = _option(setting)(function)
        file_help = "Configuration file (TOML); the only one that is read."
        return click.option("--config", "config_file", metavar="FILE", help=file_help)(function)

    return decorate


def command_options(command: str) -> Callable[[Command], Command]:
    """Adds what `setting_flags` adds, --json and --debug. The function gets `as_json`, and as
    `chosen` the settings that `load_settings` merged."""

    def decorate(function: Command) -> Command:
        @functools.wraps(function)
        def run(*args: Any, config_file: str | None, **params: Any) -> Any:
            names = [one.name for one in SETTINGS if command in one.commands]
            flags = {name: params.pop(name) for name in names}
            return function(*args, chosen=load_settings(flags, config_file), **params)

        return setting_flags(command)(output.json_flag(output.debug_flag(run)))

    return decorate


def _option(setting: Setting) -> Callable[[Command], Command]:
    shown = setting.shown or config.format_value(setting, setting.default)
    help = f"{setting.help} [default: {shown}]"
    if setting.type is Type.SWITCH:
        both = f"{setting.flag}/--no-{setting.flag.removeprefix('--')}"
        only = both if setting.default is None else setting.flag
        return click.option(only, setting.name, is_flag=True, default=None, help=help)
    if setting.type is Type.LIST:
        return click.option(
            setting.flag, setting.name, metavar="TEXT", multiple=True, default=None, help=help
        )
    metavar = "|".join(setting.choices) or _METAVARS.get(setting.type, "TEXT")
    return click.option(setting.flag, setting.name, metavar=metavar, help=help)


_METAVARS: Mapping[Type, str] = {
    Type.PATH: "PATH",
    Type.URL: "URL",
    Type.SIZE: "SIZE",
    Type.DURATION: "DURATION",
    Type.ID: "N",
    Type.COUNT: "N",
    Type.MODE: "MODE",
}


def load_settings(
    flags: Mapping[str, Any], config_file: str | None, environ: Mapping[str, str] = os.environ
) -> Config:
    """Merges all settings, including flags that precede the command of a group. Relative paths in
    flags are resolved against the working directory. Raises BadConfig."""
    flags, config_file = _with_groups(flags, config_file)
    paths = config.config_paths(config_file, environ, os.path.expanduser("~"))
    named = bool(config_file or environ.get(config.CONFIG_ENV))
    files = [file for path in paths if (file := _read(path, named)) is not None]
    absolute = {name: _absolute(name, value) for name, value in flags.items()}
    return config.load(flags=absolute, environ=environ, files=files)


def _with_groups(
    flags: Mapping[str, Any], config_file: str | None
) -> tuple[dict[str, Any], str | None]:
    """Returns the flags merged with those of the command's groups; the innermost wins."""
    merged = dict(flags)
    context = click.get_current_context(silent=True)
    while context is not None:
        config_file = config_file or context.params.get("config_file")
        for name, value in context.params.items():
            if name in BY_NAME and merged.get(name) in (None, ()):
                merged[name] = value
        context = context.parent
    return merged, config_file


def _absolute(name: str, value: Scalar | tuple[str, ...]) -> Scalar:
    if isinstance(value, tuple):
        return LIST_SEPARATOR.join(value) or None
    if isinstance(value, str) and value and BY_NAME[name].type is Type.PATH:
        return os.path.abspath(value)
    return value


def _read(path: str, must_exist: bool) -> TomlFile | None:
    try:
        with open(path, encoding="utf-8") as file:
            return TomlFile(path, file.read())
    except FileNotFoundError as err:
        if not must_exist:
            return None
        raise BadConfig("no such configuration file", path=path) from err
    except (OSError, UnicodeDecodeError) as err:
        raise BadConfig(f"configuration file cannot be read: {err}", path=path) from err


def connection_flags(chosen: Config) -> list[str]:
    """Returns the flags of the connection that were given, now or for the mount, as they are typed.
    --master is left out: the names of places contain it."""
    found: list[str] = []
    for name in ("home", "token_file", "tls", "tls_ca"):
        value = chosen[name]
        is_given = value.source in (f"flag {value.setting.flag}", OF_MOUNT)
        if is_given and value.value is not False:
            found.append(value.setting.flag)
            found += [shlex.quote(str(value.value))] if value.value is not True else []
    return found


def state_home(settings: Config, environ: Mapping[str, str] = os.environ) -> StateHome:
    """Returns the state home that the settings name."""
    return StateHome(config.state_home(settings, environ, os.path.expanduser("~")))
