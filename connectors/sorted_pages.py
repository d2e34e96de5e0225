"""The order of a listing whose store has none: sorted runs on disk, merged. Memory is bounded by a
run, however many names a directory has.

A run of names is sorted in memory and written in blocks. The merge holds a block of each run. The
file has no name (`tempfile.TemporaryFile`), so that it is gone with the iterator or the process.
"""

from __future__ import annotations

import contextlib
import tempfile
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from operator import itemgetter
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
_Keyed = tuple[bytes, Entry]  # the first is the `order_key`
_key: Final = itemgetter(0)


def sorted_pages(
    pages: Iterable[Page], scratch: str | None, run_names: int = RUN_NAMES
) -> Iterator[Page]:
    """Yields the entries of all pages in the order of `order_key`. More than `run_names` names use
    a file in the directory `scratch` (None: the system's), of about 60 bytes a name. Raises the
    errors of `pages`, and NoSpace."""
    with contextlib.ExitStack() as stack:
        runs: list[_Run] = []
        names: list[Entry] = []
        hidden, file = 0, None
        for page in pages:
            hidden += page.hidden
            names += page.entries
            if len(names) >= run_names:
                file = file or stack.enter_context(_temporary_file(scratch))
                runs.append(_write(file, _sorted(names)))
                names = []
        if hidden:
            yield Page([], hidden)
        last = _sorted(names)
        del names
        yield from _in_pages(_merged(runs, last))


def _sorted(names: Iterable[Entry]) -> list[_Keyed]:
    keyed = _with_keys(names)
    keyed.sort(key=_key)
    return keyed


def _with_keys(names: Iterable[Entry]) -> list[_Keyed]:
    """Returns what `order_key` does, without a call for each name."""
    is_directory = Kind.DIRECTORY
    return [(n.name + b"/" if n.fingerprint.kind is is_directory else n.name, n) for n in names]


class _Run:
    """A sorted run in the file: the blocks not yet read, and the rest of the one that was."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.blocks: list[tuple[int, int]] = []  # offset and size, the next one last
        self.rest: list[_Keyed] = []

    def fill(self) -> bool:
        """Reads the next block if the rest is empty. Returns whether there is a rest."""
        if not self.rest and self.blocks:
            offset, size = self.blocks.pop()
            self.file.seek(offset)
            self.rest = _with_keys(_decode(self.file.read(size)))
        return bool(self.rest)

    def take(self, last: bytes) -> list[_Keyed]:
        """Returns and drops what is not behind the key `last`."""
        end = bisect_right(self.rest, last, key=_key)
        taken, self.rest = self.rest[:end], self.rest[end:]
        return taken


def _write(file: IO[bytes], keyed: list[_Keyed]) -> _Run:
    run = _Run(file)
    with _translated():
        for start in range(0, len(keyed), BLOCK_NAMES):
            data = _encode([entry for _, entry in keyed[start : start + BLOCK_NAMES]])
            run.blocks.append((file.tell(), file.write(data)))
        file.flush()
    run.blocks.reverse()
    return run


def _merged(runs: list[_Run], last: list[_Keyed]) -> Iterator[list[_Keyed]]:
    """Yields all entries in order, in parts. `last` is a sorted run that is not in the file."""
    if not runs:
        yield last
        return
    runs.append(_write(runs[0].file, last))
    while runs := [run for run in runs if run.fill()]:
        # No block that is not yet read has a key up to the least of the last keys that were.
        safe = min(run.rest[-1][0] for run in runs)
        part = [keyed for run in runs for keyed in run.take(safe)]
        part.sort(key=_key)
        yield part


def _in_pages(parts: Iterable[list[_Keyed]]) -> Iterator[Page]:
    """Yields pages; the last one says so."""
    kept: list[Entry] = []
    for part in parts:
        kept += [entry for _, entry in part]
        while len(kept) > PAGE_NAMES:
            yield Page(kept[:PAGE_NAMES])
            del kept[:PAGE_NAMES]
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
