"""Where a manifest is kept: `manifests/<id>/` in the state home.

    current          {"generation", "run"}, replaced by rename
    lock             locked with flock by the one process that builds
    <generation>.inos, .names    locked shared by every process that uses the generation

A generation that no process uses is removed when the next one was written.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from cachefs.core.errors import BadConfig, CacheFSError, DeadlineExceeded
from cachefs.core.owned_fd import opened
from cachefs.launcher.state import StateHome, lock_within, read_document, write_document
from cachefs.trainers.manifest_tables import INO_SUFFIX, NAME_SUFFIX, TableMap, TableWriter

LOCK_WAIT_S: Final = 1800.0  # another process lists some ten million names
_PAUSE_S: Final = 0.05
_CURRENT: Final = "current"


class CurrentGeneration(msgspec.Struct, frozen=True):
    """The names of the current tables. `run`: of the master's store, for its event position.
    `due_at_s`: when names have to be compared with the origin, by the wall clock."""

    generation: str
    run: int = 0
    due_at_s: float = 0.0


class KeptTables(NamedTuple):
    """The current tables, and of `CurrentGeneration` what belongs to them."""

    tables: TableMap
    run: int
    due_at_s: float


class ManifestStore:
    """The directory of the manifests of one root."""

    def __init__(self, home: StateHome, root: bytes) -> None:
        """Creates the directory. Raises AccessDenied, NoSpace, BadConfig."""
        self.path = home.directory("manifests", hashlib.sha256(root).hexdigest()[:16])

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Holds the lock of the builder. Raises DeadlineExceeded after `LOCK_WAIT_S`."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        with opened(os.open, self.path / "lock", flags, 0o600) as file:
            try:
                lock_within(file.fileno(), LOCK_WAIT_S, _PAUSE_S)
            except BlockingIOError:
                raise DeadlineExceeded(
                    "another process has been building this manifest for half an hour",
                    remedy="see which process holds the lock in the state home",
                ) from None
            yield

    def current(self) -> KeptTables | None:
        """Returns the current tables; None if there are none that can be used."""
        with contextlib.suppress(msgspec.ValidationError, OSError, BadConfig):
            current = self._current()
            if "/" not in current.generation:
                tables = mapped(self.path / current.generation)
                return KeptTables(tables, current.run, current.due_at_s)
        return None

    def _current(self) -> CurrentGeneration:
        return msgspec.convert(read_document(self.path, _CURRENT), CurrentGeneration)

    def note_check(self, due_at_s: float) -> None:
        """Records until when all names are current; the caller holds the lock. A state home that
        cannot be written costs only another comparison."""
        with contextlib.suppress(msgspec.ValidationError, OSError, CacheFSError):
            current = msgspec.structs.replace(self._current(), due_at_s=due_at_s)
            write_document(self.path, _CURRENT, msgspec.to_builtins(current))

    def keep(
        self, tables: TableWriter, namespace: bytes, position: int, run: int, due_at_s: float
    ) -> TableMap:
        """Writes a generation and makes it the current one; the caller holds the lock."""
        current = CurrentGeneration(uuid.uuid4().hex, run, due_at_s)
        tables.write(self.path / current.generation, namespace, position)
        write_document(self.path, _CURRENT, msgspec.to_builtins(current))
        self._remove_unused(current.generation)
        return mapped(self.path / current.generation)

    def _remove_unused(self, current: str) -> None:
        for path in [*self.path.glob(f"*{INO_SUFFIX}"), *self.path.glob(f"*{NAME_SUFFIX}")]:
            if path.stem != current and _is_unused(path.with_suffix(INO_SUFFIX)):
                path.unlink(missing_ok=True)


def mapped(stem: Path) -> TableMap:
    """Returns a generation's tables, which are not removed while they are mapped. Raises OSError,
    BadConfig."""
    tables = TableMap(stem)
    fcntl.flock(tables.ino_file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    return tables


def _is_unused(path: Path) -> bool:
    try:
        with opened(os.open, path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW) as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
