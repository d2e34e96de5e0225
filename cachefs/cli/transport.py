"""Selects the transport of a mount on this machine, without mounting."""

from __future__ import annotations

import importlib.util
import os
import re
from typing import Final

import msgspec

from cachefs.core.errors import Unsupported
from cachefs.core.install import install_command
from cachefs.fuse.kernel.mount import has_sys_admin, in_user_namespace

OLDEST_KERNEL: Final = (5, 4)  # required by the transport `kernel`
PASSTHROUGH_KERNEL: Final = (6, 9)  # which also resends requests to a successor


class Machine(msgspec.Struct, frozen=True):
    """The facts that decide: the kernel's version, privileges, installed extras."""

    kernel: tuple[int, int]
    sys_admin: bool
    user_namespace: bool
    has_pyfuse3: bool

    @classmethod
    def here(cls) -> Machine:
        return cls(
            kernel=kernel_version(os.uname().release),
            sys_admin=has_sys_admin(),
            user_namespace=in_user_namespace(),
            has_pyfuse3=importlib.util.find_spec("pyfuse3") is not None,
        )


class Choice(msgspec.Struct, frozen=True):
    """The selected transport. `why_not_better`: "" if no better one exists."""

    transport: str
    passthrough: bool
    why_not_better: str = ""

    def __str__(self) -> str:
        if self.transport == "pyfuse3":
            return self.transport
        return f"{self.transport}, {'with' if self.passthrough else 'without'} passthrough"


def kernel_version(release: str) -> tuple[int, int]:
    """Returns (major, minor); (0, 0) if the release cannot be parsed."""
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match is not None else (0, 0)


def choose(wanted: str, passthrough: str, machine: Machine) -> Choice:
    """Returns the transport of a mount. Raises Unsupported if a required extra is missing."""
    old = machine.kernel < OLDEST_KERNEL
    if wanted == "pyfuse3" or (wanted == "auto" and old):
        if not machine.has_pyfuse3:
            raise Unsupported(
                "the transport pyfuse3 needs the extra of that name",
                remedy=f"{install_command('pyfuse3')}, or use Linux 5.4 or later",
            )
        why = f"transport kernel needs Linux {_shown(OLDEST_KERNEL)}" if old else "as it is set"
        return Choice("pyfuse3", False, why)
    why = why_no_passthrough(passthrough, machine)
    return Choice("kernel", not why, why)


def why_no_passthrough(passthrough: str, machine: Machine) -> str:
    """Returns the reason against passthrough in one line; "" if none is known. The file system of
    the cache may still prevent it (`cachefs status`)."""
    if passthrough == "off":
        return "passthrough is switched off, as it is set"
    if machine.kernel < PASSTHROUGH_KERNEL:
        return f"passthrough needs Linux {_shown(PASSTHROUGH_KERNEL)}"
    if not machine.sys_admin:
        return "passthrough needs CAP_SYS_ADMIN: mount as root"
    if machine.user_namespace:
        return "passthrough needs root outside of user namespaces"
    return ""


def _shown(version: tuple[int, int]) -> str:
    return ".".join(str(part) for part in version)
