"""The configuration: one value per setting, and the source of each. Pure: callers pass the texts.

Values come from defaults < TOML files < `CACHEFS_*` environment variables < flags. Each keeps the
name of its source, for `cachefs config --source` and for errors. The table of settings is
`cachefs.core.settings`.
"""

from __future__ import annotations

import difflib
import posixpath
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

import msgspec

from cachefs.core import units
from cachefs.core.errors import BadConfig
from cachefs.core.setting import LIST_SEPARATOR, Scalar, Setting, Type
from cachefs.core.settings import BY_NAME, SETTINGS

CONFIG_ENV: Final = "CACHEFS_CONFIG"
SYSTEM_FILE: Final = "/etc/cachefs/cachefs.toml"
DEFAULT: Final = "default"
# Settings of the source, with the name of the connectors' option.
SOURCE_OPTIONS: Final[Mapping[str, str]] = {
    "endpoint_url": "endpoint_url",
    "credential": "credential",
    "aws_profile": "profile",
    "region": "region",
    "requester_pays": "requester_pays",
    "anonymous": "anonymous",
    "ca_bundle": "ca_bundle",
    "addressing_style": "addressing_style",
}


class Value(msgspec.Struct, frozen=True):
    """A setting's value and its source: `default`, a file, a variable or a flag."""

    setting: Setting
    value: Scalar
    source: str

    def text(self) -> str:
        """Returns the value as a user writes it, URLs without their password."""
        return format_value(self.setting, self.value)


class Config:
    """The value of each setting, with an accessor for each type."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self.values: Mapping[str, Value] = values

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    def text(self, name: str) -> str:
        return str(self.values[name].value)

    def integer(self, name: str) -> int:
        value = self.values[name].value
        assert isinstance(value, int), name
        return value

    def items(self, name: str) -> tuple[str, ...]:
        """Returns the values of a list."""
        return tuple(part for part in self.text(name).split(LIST_SEPARATOR) if part)

    def seconds(self, name: str) -> float:
        value = self.values[name].value
        assert isinstance(value, (int, float)), name
        return float(value)

    def switch(self, name: str, undecided: bool = False) -> bool:
        value = self.values[name].value
        return undecided if value is None else bool(value)

    def is_flag(self, name: str) -> bool:
        """Returns True if a flag of the command line sets the value."""
        return self.values[name].source.startswith("flag ")

    def completed(self, values: Mapping[str, Scalar], source: str) -> Config:
        """Returns these settings, where each that is a default has the given value instead, unless
        that is empty."""
        taken = {
            name: Value(BY_NAME[name], value, source)
            for name, value in values.items()
            if value and self.values[name].source == DEFAULT
        }
        return Config({**self.values, **taken})

    def source_options(self, keep: Collection[str]) -> dict[str, str]:
        """Returns the options of a `UfsSpec`: only those that are set, so that a source keeps one
        identity. Options not in `keep` (of other schemes) are included only if a flag sets them, so
        that the connector reports the error."""
        chosen = {}
        for name, option in SOURCE_OPTIONS.items():
            entry = self.values[name]
            wanted = option in keep or self.is_flag(name)
            if wanted and entry.value not in ("", False, entry.setting.default):
                chosen[option] = "true" if entry.value is True else str(entry.value)
        return chosen | self._named_options(keep)

    def _named_options(self, keep: Collection[str]) -> dict[str, str]:
        """Returns the options that are given as NAME=VALUE."""
        is_flag = self.is_flag("source_options")
        named = {}
        for text in self.items("source_options"):
            name, separator, value = text.partition("=")
            name = name.strip().replace("-", "_")
            if not separator or not name:  # not shown: it may be a secret
                raise BadConfig("--option: not NAME=VALUE", remedy="write --option NAME=VALUE")
            if is_flag or name in keep:
                named[name] = value.strip()
        return named


class TomlFile(msgspec.Struct, frozen=True):
    """The name and the text of a configuration file."""

    path: str
    text: str


def load(
    *,
    flags: Mapping[str, Scalar],
    environ: Mapping[str, str],
    files: Iterable[TomlFile],
) -> Config:
    """Merges all sources. Later files override earlier ones; None in `flags` means "not given".
    Raises BadConfig that names the setting and the source of the first bad value."""
    values = {s.name: Value(s, s.default, DEFAULT) for s in SETTINGS}
    for file in files:
        for setting, raw in _toml_values(file):
            values[setting.name] = parse_value(setting, raw, f"file {file.path}")
    for setting in SETTINGS:
        if environ.get(setting.env):
            source = f"environment {setting.env}"
            values[setting.name] = parse_value(setting, environ[setting.env], source)
    for name, given in flags.items():
        if given is not None:
            setting = BY_NAME[name]
            values[name] = parse_value(setting, given, f"flag {setting.flag}")
    return Config(values)


def config_paths(given: str | None, environ: Mapping[str, str], home_dir: str) -> list[str]:
    """Returns the files to read, the weakest first. A file named by the flag or $CACHEFS_CONFIG is
    the only one, and must exist. Otherwise the system's and the user's file, both optional."""
    named = given or environ.get(CONFIG_ENV)
    if named:
        return [named]
    config_home = environ.get("XDG_CONFIG_HOME") or posixpath.join(home_dir, ".config")
    return [SYSTEM_FILE, posixpath.join(config_home, "cachefs", "cachefs.toml")]


def state_home(config: Config, environ: Mapping[str, str], home_dir: str) -> str:
    """Returns the state home: the setting, or a directory below the user's cache home."""
    cache_home = environ.get("XDG_CACHE_HOME") or posixpath.join(home_dir, ".cache")
    return config.text("home") or posixpath.join(cache_home, "cachefs")


def find_setting(name: str, where: str) -> Setting:
    """Returns the setting of a name ('-' or '_'). Raises BadConfig with the nearest name."""
    key = name.replace("-", "_")
    if key in BY_NAME:
        return BY_NAME[key]
    near = difflib.get_close_matches(key, BY_NAME, n=1)
    remedy = f"did you mean {near[0]!r}?" if near else "`cachefs config` lists all settings"
    raise BadConfig(f"{where}: unknown option {name!r}", remedy=remedy)


def parse_value(setting: Setting, raw: Any, source: str) -> Value:
    """Returns the value of a text or TOML scalar. Raises BadConfig that names the source."""
    try:
        value = _PARSERS[setting.type](setting, raw)
    except BadConfig as err:
        where = source if source.startswith("flag ") else f"{source}: {setting.name}"
        raise BadConfig(f"{where}: {err.cause}", remedy=err.remedy) from err
    return Value(setting, value, source)


def format_value(setting: Setting, value: Scalar) -> str:
    """Returns the value as a user writes it; "-" if it is decided later."""
    if value is None or value == "" or (setting.shown and value == setting.default):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if setting.type is Type.MODE:
        return f"{value:04o}"
    if setting.type is Type.SIZE:
        return units.format_size(float(value))
    if setting.type is Type.DURATION:
        return units.format_duration(float(value))
    return mask_password(str(value))


def mask_password(url: str) -> str:
    """Returns the URL with its password replaced by `***`."""
    return re.sub(r"(//[^/@:]*:)[^/@]+@", r"\1***@", url)


def markdown_table() -> str:
    """Returns the table of docs/configuration.md."""
    lines = [
        "| setting | flag | environment | accepts | default | meaning |",
        "|---|---|---|---|---|---|",
    ]
    for s in SETTINGS:
        flag = f"`{s.flag}`" + (f" ({s.taken_by})" if s.taken_by else "")
        default = s.shown or f"`{format_value(s, s.default)}`"
        lines.append(f"| `{s.name}` | {flag} | `{s.env}` | {s.accepts} | {default} | {s.help} |")
    return "\n".join(lines) + "\n"


def _toml_values(file: TomlFile) -> list[tuple[Setting, Any]]:
    try:
        document = tomllib.loads(file.text)
    except tomllib.TOMLDecodeError as err:
        raise BadConfig(f"file {file.path}: {err}", remedy="correct the TOML syntax") from err
    return [(find_setting(key, f"file {file.path}"), raw) for key, raw in document.items()]


def _text(setting: Setting, raw: Any) -> str:
    if not isinstance(raw, str):
        raise BadConfig(f"{raw!r} is not a text", remedy="write it in quotes")
    if "\0" in raw or "\n" in raw:
        raise BadConfig("a line break or NUL in the value")
    return raw


def _list(setting: Setting, raw: Any) -> str:
    items = raw if isinstance(raw, (list, tuple)) else [raw]
    texts = [part.strip() for item in items for part in _text(setting, item).split(LIST_SEPARATOR)]
    return LIST_SEPARATOR.join(part for part in texts if part)


def _path(setting: Setting, raw: Any) -> str:
    text = _text(setting, raw)
    if text and not text.startswith("/"):
        raise BadConfig(f"{text!r} is not an absolute path", remedy="start it with '/'")
    return posixpath.normpath(text) if text else ""


def _url(setting: Setting, raw: Any) -> str:
    text = _text(setting, raw)
    if text and not re.fullmatch(r"https?://[^/\s]+(/\S*)?", text):
        raise BadConfig(
            f"{mask_password(text)!r} is not a URL", remedy="write it as https://host:port"
        )
    return text.rstrip("/")


def _size(setting: Setting, raw: Any) -> int:
    if isinstance(raw, bool) or not isinstance(raw, (str, int)):
        raise BadConfig(f"bad size {raw!r}", remedy='write it as "20GiB"')
    return int(_at_least(setting, units.parse_size(str(raw))))


def _duration(setting: Setting, raw: Any) -> float:
    if isinstance(raw, bool) or not isinstance(raw, (str, int, float)):
        raise BadConfig(f"bad duration {raw!r}", remedy='write it as "60s"')
    return _at_least(setting, units.parse_duration(str(raw)))


def _at_least(setting: Setting, value: float) -> float:
    if value < setting.minimum:
        least = format_value(setting, setting.minimum)
        raise BadConfig("the value is too small", remedy=f"the least is {least}")
    return value


_SWITCHES = {"yes": True, "true": True, "on": True, "1": True}
_SWITCHES |= {"no": False, "false": False, "off": False, "0": False}


def _switch(setting: Setting, raw: Any) -> bool:
    if isinstance(raw, bool):
        return raw
    value = _SWITCHES.get(str(raw).lower())
    if value is None:
        raise BadConfig(f"{raw!r} is neither yes nor no", remedy="write yes or no")
    return value


def _id(setting: Setting, raw: Any) -> int:
    text = str(raw).strip()
    if isinstance(raw, bool) or not re.fullmatch(r"-1|[0-9]+", text) or int(text) >= 2**32 - 1:
        raise BadConfig(
            f"{raw!r} is not a user or group number", remedy="write a number such as 1000"
        )
    return int(text)


def _count(setting: Setting, raw: Any) -> int:
    text = str(raw).strip()
    if isinstance(raw, bool) or not re.fullmatch(r"[0-9]{1,9}", text):
        raise BadConfig(f"{raw!r} is not a count", remedy="write a number such as 100, or 0")
    return int(_at_least(setting, int(text)))


def _mode(setting: Setting, raw: Any) -> int:
    # A TOML number is refused: 644 and 0o644 are easy to confuse.
    if not isinstance(raw, str) or not re.fullmatch(r"(0o?)?[0-7]{1,3}", raw.strip()):
        raise BadConfig(f"bad mode {raw!r}", remedy='write it as three octal digits, such as "644"')
    return int(raw.strip().removeprefix("0o"), 8)


def _choice(setting: Setting, raw: Any) -> str:
    text = _text(setting, raw).lower()
    if text not in setting.choices:
        raise BadConfig(f"{raw!r} is not a choice", remedy=f"use {' or '.join(setting.choices)}")
    return text


_PARSERS: Final[Mapping[Type, Callable[[Setting, Any], Scalar]]] = {
    Type.TEXT: _text,
    Type.PATH: _path,
    Type.URL: _url,
    Type.SIZE: _size,
    Type.DURATION: _duration,
    Type.SWITCH: _switch,
    Type.ID: _id,
    Type.COUNT: _count,
    Type.MODE: _mode,
    Type.CHOICE: _choice,
    Type.LIST: _list,
}
