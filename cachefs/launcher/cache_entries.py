"""The data that ended servers left in a state home: cached bytes and names; sizes and removal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cachefs.core.addresses import is_cluster
from cachefs.core.errors import CacheFSError, InUse
from cachefs.launcher.cache_record import KEPT_NAME, read
from cachefs.launcher.processes import held_bytes, launch_lock
from cachefs.launcher.state import (
    CACHE_NAME,
    LOG_NAME,
    NAMESPACE_NAME,
    PINNED_NAME,
    StateHome,
    read_pointer,
)

TIER_NAME: Final = "TIER"
# A server that finds some of these creates the others again. The header is removed last.
_CACHE_PARTS: Final = ("index", "pub", "scratch", "trash", "files", TIER_NAME)
_NAME_PARTS: Final = (NAMESPACE_NAME, PINNED_NAME, LOG_NAME, KEPT_NAME)
_LOCKS: Final = ("server.lock", "owner.lock", "lock")  # of a source, a namespace, a cache


class Entry(msgspec.Struct, frozen=True):
    """The data of one source, or of one worker of a cluster. `source` "": not known. `used_at_s`:
    time of the last change on the disk. `pid`: a process that uses the data; 0: none."""

    id: str
    source: str
    directory: str
    cache_dirs: list[str]
    cached_bytes: int
    names_bytes: int
    used_at_s: float
    pid: int


def entries(home: StateHome) -> list[Entry]:
    """Returns the entries of a state home, the least recently used first."""
    users = _users(home)
    found = [_entry(directory, users) for directory in home.server_dirs()]
    kept = [one for one in found if one.cached_bytes or one.names_bytes or one.pid]
    return sorted(kept, key=lambda one: one.used_at_s)


def remove(entry: Entry, home: StateHome, *, names: bool) -> Iterator[int]:
    """Removes the cached bytes of an entry, with `names` also names, policies, load jobs and logs.
    Yields after each step how many bytes it removed. Raises InUse before the first removal if a
    process uses the entry; CacheFSError for a file that cannot be removed.

    No server can start during the removal. The lock files stay. The log of a mount that failed at
    its start, which has no names, is removed as well.
    """
    directory = Path(entry.directory)
    caches = [Path(path) for path in entry.cache_dirs if _is_cache(Path(path))]
    with contextlib.ExitStack() as stack:
        for place in (directory, *caches):
            stack.enter_context(launch_lock(place))
        for place in (directory, directory / NAMESPACE_NAME, *caches):
            stack.enter_context(_unused(place))
        user = _users(home).get(str(directory), 0)
        if user:
            raise _in_use(directory, user)
        for cache in caches:
            yield from _remove_parts(cache, _CACHE_PARTS)
        if names or (not entry.source and not (directory / NAMESPACE_NAME).exists()):
            yield from _remove_parts(directory, _NAME_PARTS)


def _entry(directory: Path, users: dict[str, int]) -> Entry:
    kept = read(directory)
    own = directory / CACHE_NAME
    caches = kept.cache_dirs if kept is not None else [str(own)]
    pointer = read_pointer(directory)
    pid = users.get(str(directory), 0)
    if pointer is not None and pointer.process.lives():
        pid = pointer.pid
    return Entry(
        directory.name,
        kept.source if kept is not None else "",
        str(directory),
        [path for path in caches if _is_cache(Path(path))],
        sum(_held(Path(path), _CACHE_PARTS) for path in caches),
        _held(directory, _NAME_PARTS),
        _used_at_s([directory, *map(Path, caches)]),
        pid,
    )


def _is_cache(directory: Path) -> bool:
    """Returns whether this is a cache directory of this user. A link is not: paths are real."""
    try:
        info = directory.lstat()
        return (
            stat.S_ISDIR(info.st_mode)
            and info.st_uid == os.geteuid()
            and (directory / TIER_NAME).is_file()
        )
    except OSError:
        return False


def _held(directory: Path, parts: Sequence[str]) -> int:
    return sum(held_bytes(directory / part) for part in parts if (directory / part).is_dir())


def _used_at_s(places: Sequence[Path]) -> float:
    names = ("index/data.mdb", f"{NAMESPACE_NAME}/data.mdb", f"{LOG_NAME}/server.log", TIER_NAME)
    times = [0.0]
    for place in places:
        for name in names:
            with contextlib.suppress(OSError):
                times.append((place / name).stat().st_mtime)
    return max(times)


def _users(home: StateHome) -> dict[str, int]:
    """Returns the pids of live mounts by the directories that they use. A mount uses its source
    also while its server restarts."""
    found: dict[str, int] = {}
    for record in home.mount_records():
        if record.is_served():
            pid = record.pid or record.supervisor
            found[os.path.dirname(record.socket)] = pid
            if not is_cluster(record.source.url):
                found[str(home.log_path(record.source).parent)] = pid
    return found


@contextlib.contextmanager
def _unused(directory: Path) -> Iterator[None]:
    """Holds the locks that a server holds while it runs. Raises InUse."""
    with contextlib.ExitStack() as stack:
        for name in _LOCKS:
            try:
                fd = os.open(directory / name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:
                continue
            stack.callback(os.close, fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as err:
                raise _in_use(directory, 0) from err
        yield


def _in_use(directory: Path, pid: int) -> InUse:
    by = f" (pid {pid})" if pid else ""
    remedy = "unmount what uses it, or end that process; `cachefs cache ls` lists the users"
    return InUse(f"a process uses it{by}", path=str(directory), remedy=remedy)


def _remove_parts(directory: Path, parts: Sequence[str]) -> Iterator[int]:
    for part in parts:
        path = directory / part
        try:
            if path.is_symlink() or path.is_file():
                path.unlink()
            elif path.is_dir():
                yield from _remove_tree(path)
        except OSError as err:
            cause = f"cannot be removed: {err.strerror}"
            raise CacheFSError(cause, path=str(err.filename or path)) from err


def _remove_tree(directory: Path) -> Iterator[int]:
    """Removes a directory; yields the bytes removed after each of its folders."""
    for child in sorted(directory.iterdir()):
        if child.is_dir() and not child.is_symlink():
            size_bytes = held_bytes(child)
            shutil.rmtree(child)
            yield size_bytes
    size_bytes = held_bytes(directory)
    shutil.rmtree(directory)
    yield size_bytes
