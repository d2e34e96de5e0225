"""Mount namespaces of tests, without the mounts of the tests that run beside them.

A new namespace has a copy of every mount. A FUSE mount that is unmounted elsewhere lives, with its
processes, until the last copy is unmounted, too."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_NOWHERE: Final = Path("/none")
# Several rounds: the first unmounts the native directory that covers a mount. A mount whose
# directory is removed meanwhile is gone in every namespace: umount would say so in a test's log.
_UNMOUNTED: Final = (
    "for round in 1 2 3; do "
    "grep -o '^[^ ]* [^ ]* fuse' /proc/self/mounts | cut -d ' ' -f 2 | grep -vxF -e \"$0\" | "
    'while read -r where; do umount -l "$where" 2>/dev/null; done; done; '
)
_KEPT_ALONE: Final = _UNMOUNTED + 'exec "$@"'
_OWN_FUSE: Final = _UNMOUNTED + 'mount --bind "$0" /dev/fuse && exec "$@"'


def with_mount(where: Path, *command: str, propagation: str = "private") -> list[str]:
    """Returns what runs the command in a mount namespace of its own, where the file system of FUSE
    at `where` is mounted and no other. With another propagation the others stay where the kernel
    repeats an unmount in all copies: there it ends them itself, and would end the originals."""
    separate = ["unshare", "--mount", f"--propagation={propagation}"]
    if propagation != "private" and _is_repeated(where.parent):
        return [*separate, *command]
    return [*separate, "sh", "-c", _KEPT_ALONE, str(where), *command]


def _is_repeated(directory: Path) -> bool:
    """Returns whether the kernel repeats what is mounted in a directory in other namespaces."""
    rows = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    above = [row for row in rows if directory.is_relative_to(row[4])]
    deepest = max(above, key=lambda row: len(row[4]))
    return any(field.startswith("shared:") for field in deepest[6:])


def without_mounts(*command: str) -> list[str]:
    """Returns what runs the command in a mount namespace of its own, where no file system of FUSE
    is mounted."""
    return with_mount(_NOWHERE, *command)


def container(*command: str) -> list[str]:
    """Returns what runs the command as the first process of a pid namespace, with a mount namespace
    of its own in which no file system of FUSE is mounted. The end of the process that is started
    ends everything in it."""
    return [
        "unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation=private",
        "sh", "-c", _KEPT_ALONE, str(_NOWHERE), *command,
    ]  # fmt: skip


def with_fuse_device(device: Path, *command: str) -> list[str]:
    """Returns what runs the command in a mount namespace of its own, where `device` stands at
    /dev/fuse and no file system of FUSE is mounted."""
    return [
        "unshare", "--mount", "--propagation=private",
        "sh", "-c", _OWN_FUSE, str(device), *command,
    ]  # fmt: skip
