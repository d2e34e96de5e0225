"""The order of a listing whose store has none: sorted runs on disk, merged. Memory is bounded by a
run, however many names a directory has.

A run of names is sorted in memory and written in blocks. The merge holds a block of each run. The
file has no name (`tempfile.TemporaryFile`), so that it ends with the iterator or the process.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import IO, Final

import msgspec

from cachefs.core.errors import NoSpace
from cachefs.core.model import Kind
from connectors.base import Entry, Page

RUN_NAMES: Final = 50_000
BLOCK_NAMES: Final = 500
PAGE_NAMES: Final = 1000
_decode: Final = msgspec.msgpack.Decoder(list[Entry]).decode
_encode: Final = msgspec.msgpack.Encoder().encode
_Key = Callable[[Entry], bytes]
_name: Final[_Key] = attrgetter("name")  # costs less than a call of Python for each name


def sorted_pages(
    pages: Iterable[Page], scratch: str | None, run_names: int = RUN_NAMES
) -> Iterator[Page]:
    """Yields the entries of all pages in the order of `order_key`, each once. More than `run_names`
    names use a file in the directory `scratch` (None: the system's), of about 60 bytes a name.
    Raises the errors of `pages`, and NoSpace."""
    with contextlib.ExitStack() as stack:
        runs: list[_Run] = []
        names: list[Entry] = []
        hidden, file = 0, None
        for page in pages:
            hidden += page.hidden
            names += page.entries
            if len(names) >= run_names:
                file = file or stack.enter_context(_temporary_file(scratch))
                runs.append(_Run(file, names))
                names = []
        if hidden:
            yield Page([], hidden)
        if runs and file:
            runs.append(_Run(file, names))
            yield from _in_pages(_once(_merged(runs, run_names)))
        else:
            names.sort(key=_key_of(names))
            yield from _in_pages(_once([names]))


def _key_of(names: list[Entry]) -> _Key:
    """Returns what computes the `order_key` of these names."""
    is_directory = Kind.DIRECTORY
    return _order_key if is_directory in {n.fingerprint.kind for n in names} else _name


def _order_key(entry: Entry) -> bytes:
    return entry.name + b"/" if entry.fingerprint.kind is Kind.DIRECTORY else entry.name


class _Run:
    """A sorted run in the file: the blocks not yet read, and what was read and not yet taken."""

    def __init__(self, file: IO[bytes], names: list[Entry]) -> None:
        """Sorts the names in place and writes them."""
        self.key = _key_of(names)
        names.sort(key=self.key)
        self._file = file
        self._blocks: list[tuple[int, int]] = []  # offset and size, the next one last
        self._read: list[Entry] = []
        self._at = 0  # of the first one that was not taken
        self._write(names)

    def _write(self, names: list[Entry]) -> None:
        with _translated():
            at = self._file.seek(0, os.SEEK_END)
            for start in range(0, len(names), BLOCK_NAMES):
                size = self._file.write(_encode(names[start : start + BLOCK_NAMES]))
                self._blocks.append((at, size))
                at += size
            self._file.flush()
        self._blocks.reverse()

    def fill(self, blocks: int) -> bool:
        """Reads the next blocks if all names were taken. Returns whether there are names."""
        if self._at < len(self._read):
            return True
        self._read, self._at = [], 0
        for _ in range(min(blocks, len(self._blocks))):
            offset, size = self._blocks.pop()
            with _translated():
                self._file.seek(offset)
                data = self._file.read(size)
            self._read += _decode(data)
        return bool(self._read)

    def last(self, key: _Key) -> bytes:
        return key(self._read[-1])

    def take(self, last: bytes, key: _Key) -> list[Entry]:
        """Returns what is not behind the key `last`."""
        start = self._at
        self._at = bisect_right(self._read, last, start, key=key)
        return self._read[start : self._at]


def _merged(runs: list[_Run], at_once: int) -> Iterator[list[Entry]]:
    """Yields all entries in order, in parts. About `at_once` names are in memory, or a block of
    each run if that is more."""
    key = _order_key if any(run.key is _order_key for run in runs) else _name
    blocks = max(1, at_once // (BLOCK_NAMES * len(runs)))
    while runs := [run for run in runs if run.fill(blocks)]:
        # No block that is not yet read has a key up to the least of the last keys that were.
        safe = min(run.last(key) for run in runs)
        part: list[Entry] = []
        for run in runs:
            part += run.take(safe, key)
        part.sort(key=key)
        yield part


def _once(parts: Iterable[list[Entry]]) -> Iterator[list[Entry]]:
    """Drops entries that a store lists again: some put a directory on several pages."""
    before = b""
    for part in parts:
        if not part:
            continue
        if len({entry.name for entry in part}) < len(part) or _order_key(part[0]) == before:
            first = {_order_key(entry): entry for entry in reversed(part)}
            first.pop(before, None)
            part = [*reversed(first.values())]
        if part:
            before = _order_key(part[-1])
            yield part


def _in_pages(parts: Iterable[list[Entry]]) -> Iterator[Page]:
    """Yields pages; the last one is marked."""
    kept: list[Entry] = []
    for part in parts:
        kept += part
        whole = (len(kept) - 1) // PAGE_NAMES * PAGE_NAMES  # at least one name stays
        for start in range(0, whole, PAGE_NAMES):
            yield Page(kept[start : start + PAGE_NAMES])
        del kept[: max(0, whole)]
    if kept:
        yield Page(kept, last=True)


def _temporary_file(scratch: str | None) -> IO[bytes]:
    with _translated():
        return tempfile.TemporaryFile(dir=scratch, prefix="cachefs-listing-")


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        cause = f"a listing cannot be sorted on disk ({error.strerror})"
        raise NoSpace(cause, remedy="check the disk of the metadata store") from error
