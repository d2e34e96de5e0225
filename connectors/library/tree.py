"""The interface of `connectors.library.connector` to a library's file system, and the entries that
it makes of a library's facts."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, NamedTuple, Protocol

from cachefs.core.errors import OriginError
from cachefs.core.model import Fingerprint, Kind
from connectors import keys
from connectors.base import Entry
from connectors.bounds import NS, UNKNOWN_NS, clamped_ns, parse_http_date, parse_size

DIRECTORY: Final = Fingerprint(Kind.DIRECTORY)


class Facts(NamedTuple):
    """The facts that a library has of a name. `version`: an etag or a generation, "" if there is
    none. `mtime_ns`: None if it is unknown."""

    name: bytes
    is_directory: bool
    size: int | None = None
    mtime_ns: int | None = None
    version: str = ""


class LibraryTree(Protocol):
    """A file system below one root. Paths are below it. May raise any exception of the library, and
    the typed errors. Calls may run in many threads at once."""

    @property
    def where(self) -> str:
        """The URL of the root, without a trailing '/'."""

    def stat(self, path: bytes) -> Facts | None:
        """Returns None for a name that does not exist, or is no file and no directory."""

    def names(self, path: bytes) -> tuple[list[Facts], int]:
        """Returns the names of a directory, in any order, and the number of hidden ones. Raises
        NotFound or FileNotFoundError for a missing directory."""

    def read(self, path: bytes, offset: int, size: int) -> memoryview:
        """Returns the bytes of a range, fewer at the end of the file."""

    def close(self) -> None:
        """Releases connections; idempotent."""


class VersionRule(NamedTuple):
    """How files are known to have changed. `is_fixed`: the operator declares that they never do.
    `precision_ns`: of the times that every reply of the store has. A listing may have milliseconds
    where the reply for one file has whole seconds, as those of many stores with etags."""

    is_fixed: bool = False
    precision_ns: int = 1

    def entry(self, facts: Facts) -> Entry | None:
        """Returns the entry of a name; None for a size that no file can have. Raises OriginError
        for a file whose changes could not be noticed."""
        if facts.is_directory:
            return Entry(facts.name, DIRECTORY)
        size = parse_size(str(facts.size))
        if size is None:
            return None
        if facts.mtime_ns is None and not facts.version and not self.is_fixed:
            cause = "the file system tells no time and no etag of a file: no change can be noticed"
            remedy = "if its files never change, give --option files_never_change=true"
            raise OriginError(cause, remedy=remedy)
        mtime_ns = UNKNOWN_NS if facts.mtime_ns is None else clamped_ns(facts.mtime_ns)
        mtime_ns -= mtime_ns % (NS if facts.version else self.precision_ns)
        return Entry(facts.name, Fingerprint(Kind.FILE, size, mtime_ns, facts.version))

    def entries(self, found: Iterable[Facts]) -> tuple[list[Entry], int]:
        """Returns the entries of a directory, and the number of names that cannot be shown. A
        directory hides a file of its name."""
        files: dict[bytes, Entry] = {}
        directories: set[bytes] = set()
        hidden = 0
        for facts in found:
            entry = self.entry(facts) if keys.visible(facts.name) else None
            if entry is None:
                hidden += 1
            elif facts.is_directory:
                directories.add(facts.name)
            else:
                files[facts.name] = entry
        hidden += keys.directories_win(files, directories)
        return [*files.values(), *(Entry(name, DIRECTORY) for name in directories)], hidden


def time_ns(value: object) -> int | None:
    """Returns a library's time: a datetime, seconds, or text by ISO or HTTP; None if it is none of
    them. A datetime without a zone is in UTC. Raises OverflowError or ValueError for a number that
    is no time."""
    if isinstance(value, str):
        value = _parsed(value)
    if isinstance(value, datetime):
        value = value.timestamp() if value.tzinfo else value.replace(tzinfo=UTC).timestamp()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value * 10**6) * (NS // 10**6)  # a float holds no more than microseconds
    return None


def _parsed(text: str) -> object:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        found_ns = parse_http_date(text, -1)
        return None if found_ns == -1 else found_ns // NS
