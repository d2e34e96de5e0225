"""Which transport a mount takes on this machine, and why none better: decided from what is known
without mounting."""

from __future__ import annotations

import importlib.util
import os
import re
from typing import Final

import msgspec

from cachefs.core.errors import Unsupported
from cachefs.core.install import install_command
from cachefs.fuse.kernel.mount import has_sys_admin, in_user_namespace

OLDEST_KERNEL: Final = (5, 4)  # that the transport `kernel` works with
PASSTHROUGH_KERNEL: Final = (6, 9)  # that also sends requests again to a successor


class Machine(msgspec.Struct, frozen=True):
    """What counts: the kernel's version, privileges, installed extras."""

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
    """`why_not_better`: "" where this is the best there is."""

    transport: str
    passthrough: bool
    why_not_better: str = ""

    def __str__(self) -> str:
        if self.transport == "pyfuse3":
            return self.transport
        return f"{self.transport}, {'with' if self.passthrough else 'without'} passthrough"


def kernel_version(release: str) -> tuple[int, int]:
    """(0, 0) when it cannot be read."""
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match is not None else (0, 0)


def choose(asked: str, passthrough: str, machine: Machine) -> Choice:
    """What a mount takes. Raises Unsupported when the extra that it needs is not installed."""
    old = machine.kernel < OLDEST_KERNEL
    if asked == "pyfuse3" or (asked == "auto" and old):
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
    """One line; "" when nothing is known against it. The file system that the cache is on has the
    last word (`cachefs status`)."""
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
