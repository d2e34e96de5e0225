"""Whether nobody but their owner and root can change or replace the directories of a cache and of a
namespace.

The bytes of a tier are served without the origin's consent: whoever may write its directory, or put
another one in its place, decides what readers get. The rule is that of sshd's StrictModes: a
directory belongs to this user, all directories above it to this user or root, and no others may
write them. Above the directory itself a sticky one (/tmp, /dev/shm) is as good: nobody may rename
in it what is ours.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

from cachefs.core.errors import AccessDenied

_REMEDY = "give a directory that you alone may write, below ones that others cannot write"


def check_own(path: str | Path) -> None:
    """Raises AccessDenied where users other than this one and root can change or replace the
    directory, which need not be there yet. Links are followed."""
    for one in {os.path.abspath(path), os.path.realpath(path)}:
        _check_one(Path(one))


def _check_one(path: Path) -> None:
    for directory in (path, *path.parents):
        try:
            info = directory.stat()
        except FileNotFoundError:
            continue  # it will be made, and be ours
        except OSError as err:
            raise AccessDenied(f"{err.strerror}", path=str(directory), remedy=_REMEDY) from err
        why = _fault(info, is_leaf=directory == path)
        if why:
            shown = f"the directory {why}"
            raise AccessDenied(
                f"{shown}, who could change what is kept in {path}",
                path=str(directory),
                remedy=f"{_REMEDY}, or: chmod go-w {directory}",
            )


def _fault(info: os.stat_result, *, is_leaf: bool) -> str:
    """What lets others write a directory; "" where nothing does."""
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
    """Tells whether a group is that of this user alone, as many systems make one for each user."""
    try:
        name, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == name and set(group.gr_mem) <= {name}
