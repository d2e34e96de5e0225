"""The processes that use a mount: open files, working directory, root, executable and mappings."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

import msgspec

SHOWN: Final = 5


class User(msgspec.Struct, frozen=True):
    """A process that keeps a mount busy."""

    pid: int
    name: str


def find_users(mountpoint: str, proc: str = "/proc") -> list[User]:
    """Returns the processes that use files at or below `mountpoint`, by pid. Only root sees those
    of other users. Links are read, never followed, so a dead mount cannot block the search."""
    found = []
    for pid in sorted(int(name) for name in os.listdir(proc) if name.isdigit()):
        with contextlib.suppress(OSError):
            if _uses(Path(proc, str(pid)), mountpoint):
                found.append(User(pid, Path(proc, str(pid), "comm").read_text().strip()))
    return found


def leave(mountpoint: str) -> None:
    """Changes to `/` if the working directory is below a mount point, so that this process does not
    keep the mount busy. Does not touch the mount."""
    if _below(_target(Path("/proc/self/cwd")), mountpoint):
        os.chdir("/")


def describe(users: list[User]) -> str:
    """Returns `python (pid 12), bash (pid 7) and 3 more`."""
    text = ", ".join(f"{user.name} (pid {user.pid})" for user in users[:SHOWN])
    return f"{text} and {len(users) - SHOWN} more" if len(users) > SHOWN else text


def _uses(process: Path, mountpoint: str) -> bool:
    links = [process / name for name in ("cwd", "root", "exe")]
    with contextlib.suppress(OSError):
        links += [process / "fd" / name for name in os.listdir(process / "fd")]
    return any(_below(_target(link), mountpoint) for link in links) or _maps(process, mountpoint)


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


def _below(path: str, mountpoint: str) -> bool:
    path = path.removesuffix(" (deleted)")
    return path == mountpoint or path.startswith(mountpoint.rstrip("/") + "/")


def _maps(process: Path, mountpoint: str) -> bool:
    try:
        with open(process / "maps", "rb") as file:
            needle = b" " + os.fsencode(mountpoint.rstrip("/")) + b"/"
            return any(needle in line for line in file)
    except OSError:
        return False
