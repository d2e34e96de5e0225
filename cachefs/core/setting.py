"""A setting: its type, its names, and the commands that accept it. `cachefs.core.settings` has the
table of all."""

from __future__ import annotations

import enum
from typing import Final

import msgspec

ENV_PREFIX: Final = "CACHEFS_"
LIST_SEPARATOR: Final = ";"

Scalar = str | int | float | bool | None


class Type(enum.Enum):
    """The type of a value: how it is written, and its Python type."""

    TEXT = "text"  # str; "" = not set
    PATH = "path"  # str, absolute; "" = not set
    URL = "URL"  # str, http:// or https://; "" = not set
    SIZE = "size"  # int, bytes
    DURATION = "duration"  # float, seconds
    SWITCH = "yes or no"  # bool; None = decided at mount time
    ID = "number"  # int; -1 = not set
    COUNT = "count"  # int
    MODE = "octal mode"  # int, permission bits
    CHOICE = "choice"  # str, one of `choices`
    LIST = "list"  # str, joined by ";"; a flag that may be repeated, a list in TOML


class Setting(msgspec.Struct, frozen=True):
    """A setting. `shown`: what an empty default stands for, in words."""

    name: str
    type: Type
    default: Scalar
    help: str
    shown: str = ""
    choices: tuple[str, ...] = ()
    commands: tuple[str, ...] = ("mount",)  # that accept it as a flag
    minimum: float = 0
    option: str = ""  # the flag's name, if it differs from the setting's

    @property
    def flag(self) -> str:
        return "--" + (self.option or self.name).replace("_", "-")

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.name.upper()

    @property
    def taken_by(self) -> str:
        """The commands that accept the flag, for people; "" = mount alone."""
        if self.commands == ("mount",):
            return ""
        refusing = [name for name in EVERY if name not in self.commands]
        if len(refusing) <= 1:
            return " but ".join(["every command", *refusing])
        groups = set(self.commands)  # a group stands for its commands
        clients = set(CLIENT_COMMANDS) <= groups
        others = [c for c in self.commands if not (clients and c in CLIENT_COMMANDS)]
        named = [c for c in others if " " not in c or c.split()[0] not in groups]
        return ", ".join([*named, "client commands"] if clients else named)

    @property
    def accepts(self) -> str:
        """The accepted values, for people."""
        return " \\| ".join(self.choices) if self.choices else self.type.value


# Commands that send requests to a master, its workers, or the server of a mount.
CLIENT_COMMANDS: Final = (
    "status", "health", "top", "logs", "ls", "stat", "du", "sync", "load", "jobs", "free", "pin",
    "freeze", "thaw", "views", "view", "unpin", "ttl", "quota", "policy", "ufs", "ufs add",
    "ufs set", "workers", "location", "fsck",
)  # fmt: skip
AGENT: Final = ("fuse-agent",)
DRIVER: Final = ("csi",)
IN_PODS: Final = (*DRIVER, *AGENT)
OPERATOR: Final = ("operator",)
FOR_KUBERNETES: Final = (*DRIVER, *AGENT, *OPERATOR)
EVERY: Final = (
    "mount", "umount", "doctor", "cache", "master", "worker", "up", "down", "config",
    *FOR_KUBERNETES, *CLIENT_COMMANDS,
)  # fmt: skip
KNOWN: Final = frozenset(EVERY)
