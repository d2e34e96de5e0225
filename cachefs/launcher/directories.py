"""Checks that only their owner and root can change or replace the directories of a cache and of a
namespace.

The bytes of a tier are served without a check at the origin: a user who can write its directory, or
replace it, decides what readers get. The rule is that of sshd's StrictModes: a directory belongs to
this user, all directories above it to this user or root, and no others may write to them. A sticky
directory (/tmp, /dev/shm) above it is accepted: other users cannot rename our files in it.
"""

from __future__ import annotations

import grp
import logging
import os
import pwd
import stat
from pathlib import Path
from shlex import quote
from typing import Final

from cachefs.core.errors import AccessDenied

log = logging.getLogger(__name__)

MOST_LINKS: Final = 40  # as the kernel follows
SHARED: Final = ("/tmp", "/var/tmp", "/dev/shm")
_REMEDY: Final = "give a directory that you alone may write, below ones that others cannot write"


def check_own(path: str | Path, *, trust: bool = False) -> None:
    """Raises AccessDenied if users other than this one and root can change or replace the
    directory, which need not exist yet. Follows links. Closes a directory of this user that others
    can write (0700), such as the root of a new tmpfs, but refuses it if it has files of others.
    `trust`: logs a warning instead."""
    try:
        for one in _followed(Path(os.path.abspath(path))):
            _check_one(one)
    except AccessDenied as err:
        if not trust:
            raise
        log.warning("%s: %s; using it because directories are trusted", err.path, err.cause)


def _followed(path: Path) -> list[Path]:
    """Returns the path, the paths after resolving each link in it, and its real path."""
    found, real = [path], Path(os.path.realpath(path))
    for _ in range(MOST_LINKS):
        link = next((one for one in (*reversed(path.parents), path) if os.path.islink(one)), None)
        if link is None:
            break
        _check_link(link)
        target = link.parent / os.readlink(link) / path.relative_to(link)
        path = Path(os.path.normpath(target))
        found.append(path)
    return found if real in found else [*found, real]


def _check_link(link: Path) -> None:
    """Raises AccessDenied for a link of another user in a sticky directory: the kernel may follow
    it (`fs.protected_symlinks`), and that user can point it elsewhere."""
    owner = link.lstat().st_uid
    if owner not in (os.geteuid(), 0) and link.parent.stat().st_mode & stat.S_ISVTX:
        cause = f"the link belongs to user {owner}, who could point it elsewhere"
        raise AccessDenied(cause, path=str(link), remedy=_REMEDY)


def _check_one(path: Path) -> None:
    for directory in (path, *path.parents):
        try:
            info = directory.stat()
        except FileNotFoundError:
            continue  # this process will create it
        except OSError as err:
            raise AccessDenied(f"{err.strerror}", path=str(directory), remedy=_REMEDY) from err
        is_leaf = directory == path
        if is_leaf and info.st_uid == os.geteuid():
            why = _closed(directory, info)
        else:
            why = _fault(info, is_leaf=is_leaf)
        if why:
            shown = f"the directory {why}"
            raise AccessDenied(
                f"{shown}, who could change what is kept in {path}",
                path=str(directory),
                remedy=f"{_REMEDY}, or: chmod go-w {quote(str(directory))},"
                " or, where these users are trusted: --trust-directories",
            )


def _closed(directory: Path, info: os.stat_result) -> str:
    """Closes a directory of this user to others. Returns the fault, and leaves it open, if it has
    files of theirs. Raises AccessDenied for a directory that all programs use."""
    if not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return ""
    check_unshared(directory)
    os.chmod(directory, 0o700)
    with os.scandir(directory) as entries:
        owners = {one.name: one.stat(follow_symlinks=False).st_uid for one in entries}
    foreign = next((name for name, owner in owners.items() if owner != info.st_uid), "")
    if not foreign:
        return ""
    os.chmod(directory, stat.S_IMODE(info.st_mode))
    return f"could be written by others and has {foreign!r} of another user"


def check_unshared(directory: Path) -> None:
    """Raises AccessDenied for a directory that all programs use, and that must stay open."""
    if os.path.realpath(directory) in map(os.path.realpath, SHARED):
        cause = "the directory is shared by all users"
        raise AccessDenied(cause, path=str(directory), remedy="give a directory in it, or another")


def _fault(info: os.stat_result, *, is_leaf: bool) -> str:
    """Returns why others can write a directory, "" if they cannot."""
    if info.st_uid not in (os.geteuid(), 0) or (is_leaf and info.st_uid != os.geteuid()):
        return f"belongs to user {info.st_uid}"
    if info.st_mode & stat.S_ISVTX and not is_leaf:
        return ""
    if info.st_mode & stat.S_IWOTH:
        return "can be written by everybody"
    if info.st_mode & stat.S_IWGRP and not _is_of_one(info.st_gid):
        return f"can be written by group {info.st_gid}"
    return ""


def _is_of_one(gid: int) -> bool:
    """Returns whether a group has this user only, as many systems create one for each user."""
    try:
        name, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == name and set(group.gr_mem) <= {name}
