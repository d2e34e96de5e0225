"""The options of a mount that the kernel applies itself, as fstab(5) and mount(8) name them.

`mount.cachefs` collects them in `ClientSpec.mount_options`; root passes them to mount(2), as flags
or as data, and an ordinary user passes them to `fusermount3`, which refuses those that it does not
know. `nosuid` and `nodev` hold for every mount and need no mention.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from cachefs.core.errors import BadConfig

FLAGS: Final = {
    "noexec": 1 << 3,
    "sync": 1 << 4,
    "dirsync": 1 << 7,
    "noatime": 1 << 10,
    "nodiratime": 1 << 11,
    "silent": 1 << 15,
    "relatime": 1 << 21,
    "strictatime": 1 << 24,
    "lazytime": 1 << 25,
}
_UNDO: Final = {
    "exec": "noexec",
    "async": "sync",
    "atime": "noatime",
    "diratime": "nodiratime",
    "loud": "silent",
    "norelatime": "relatime",
    "nostrictatime": "strictatime",
    "nolazytime": "lazytime",
}
_IMPLY: Final = {"user": "noexec", "users": "noexec"}  # mount(8), unless `exec` follows
CONTEXTS: Final = ("context=", "fscontext=", "defcontext=", "rootcontext=")
NAMES: Final = frozenset((*FLAGS, *_UNDO, *_IMPLY))
_SELINUX: Final = Path("/sys/fs/selinux/status")


def collect(options: Iterable[str]) -> tuple[str, ...]:
    """Returns the options that the kernel applies, in the order given: a later option overrides an
    earlier one. Other options are left out."""
    kept: dict[str, None] = {}
    for option in options:
        if option in _UNDO:
            kept.pop(_UNDO[option], None)
        elif option in FLAGS or option in _IMPLY:
            kept[_IMPLY.get(option, option)] = None
        elif option.startswith(CONTEXTS):
            kept[option] = None
    return tuple(kept)


def check(options: Iterable[str], *, is_root: bool | None = None) -> None:
    """Raises BadConfig, naming the option, for an option that cannot be passed on this machine."""
    is_root = os.geteuid() == 0 if is_root is None else is_root
    for option in options:
        if not option.startswith(CONTEXTS):
            continue
        name = option.partition("=")[0]
        if not _SELINUX.exists():
            raise BadConfig(f"-o {name}: SELinux is not enabled on this machine", remedy=_REMEDY)
        if not is_root:
            raise BadConfig(f"-o {name}: only root can set the SELinux context", remedy=_REMEDY)
        if '"' in _unquoted(option):
            raise BadConfig(f"-o {name}: a double quote in the value", remedy=_REMEDY)


_REMEDY: Final = "leave the option out"


def flags_of(options: Iterable[str]) -> int:
    """Returns the flags of mount(2)."""
    flags = 0
    for option in options:
        flags |= FLAGS.get(option, 0)
    return flags


def data_of(options: Iterable[str]) -> list[str]:
    """Returns the options that mount(2) takes as data. A value with a comma is put in double
    quotes: the kernel ends an option at a comma outside of quotes."""
    return [
        _quoted(option) if "," in option else option for option in options if option not in FLAGS
    ]


def _unquoted(option: str) -> str:
    """Returns the value of an option without the double quotes around it."""
    value = option.partition("=")[2]
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value


def _quoted(option: str) -> str:
    return f'{option.partition("=")[0]}="{_unquoted(option)}"'
