"""The tables of a manifest: written once by `TableWriter`, mapped by any number of `TableMap`s."""

from __future__ import annotations

import bisect
import functools
import itertools
import mmap
import os
import sys
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import xxhash

from cachefs.core.manifest_format import (
    INO_HEADER_BYTES,
    NAME_HEADER_BYTES,
    NO_NAMESPACE,
    InoTableHeader,
    NameTableHeader,
)
from cachefs.core.owned_fd import OwnedFd, opened
from cachefs.trainers.listings import FoundFile

INO_SUFFIX: Final = ".inos"
NAME_SUFFIX: Final = ".names"


def _numbers() -> array[int]:
    return array("Q")


class TableWriter:
    """The tables while they are built: 24 bytes and the name for each file, no object."""

    def __init__(self) -> None:
        self._inos, self._sizes, self._name_ends = _numbers(), _numbers(), _numbers()
        self._folder_inos, self._firsts, self._path_ends = _numbers(), _numbers(), _numbers()
        self._names, self._paths = bytearray(), bytearray()

    def folder(self, path: bytes, ino: int) -> None:
        """Begins a folder; the files that are added next are in it."""
        self._folder_inos.append(ino)
        self._firsts.append(len(self._inos))
        self._paths += path
        self._path_ends.append(len(self._paths))

    def files(self, files: Iterable[FoundFile]) -> None:
        """Adds files, in the order of their names."""
        names, ends = self._names, self._name_ends
        for name, ino, size in files:
            self._inos.append(ino)
            self._sizes.append(size)
            names += name
            ends.append(len(names))

    def copied(self, old: TableMap, first: int, end: int) -> None:
        """Adds files of an earlier manifest, by their numbers."""
        start = old.name_ends[first - 1] if first else 0
        shift = len(self._names) - start
        self._inos.frombytes(old.inos[first:end].cast("B"))
        self._sizes.frombytes(old.sizes[first:end].cast("B"))
        self._name_ends.extend(stop + shift for stop in old.name_ends[first:end])
        self._names += old.name_bytes(start, old.name_ends[end - 1] if end else 0)

    def write(self, stem: Path, namespace: bytes, position: int) -> None:
        """Writes both tables, `stem` with the suffixes, durably enough for other processes."""
        sections = (
            self._sizes, self._name_ends, self._folder_inos, self._firsts, self._path_ends,
            self._names, self._paths,
        )  # fmt: skip
        digest = xxhash.xxh3_64()
        for section in (self._sizes, self._name_ends, self._path_ends, self._names, self._paths):
            digest.update(section)
        identity = digest.intdigest()
        names = NameTableHeader(
            len(self._inos), len(self._firsts), len(self._names), len(self._paths), identity
        )
        inos = InoTableHeader(len(self._inos), namespace or NO_NAMESPACE, position, identity)
        _write(stem.with_name(stem.name + NAME_SUFFIX), names.encode(), sections)
        _write(stem.with_name(stem.name + INO_SUFFIX), inos.encode(), (self._inos,))


class TableMap:
    """Both tables of one manifest, mapped read-only. The pages are shared by all processes."""

    def __init__(self, stem: Path) -> None:
        """Maps the tables. Raises OSError if they are missing, BadConfig if they are not valid."""
        assert sys.byteorder == "little"
        self.stem = stem
        self.ino_file = _open(stem.with_name(stem.name + INO_SUFFIX))  # its last user closes it
        with _open(stem.with_name(stem.name + NAME_SUFFIX)) as name_file:
            self._ino_map, self.header = _mapped_inos(self.ino_file.fileno())
            self._name_map, names = _mapped_names(name_file.fileno())
        starts = names.sections()
        numbers = [self._numbers_at(*ends) for ends in itertools.pairwise(starts[:6])]
        self.sizes, self.name_ends, self.folder_inos, self.firsts, self.path_ends = numbers
        self._names_at, self._paths_at = starts[5], starts[6]
        self.inos = memoryview(self._ino_map)[INO_HEADER_BYTES:].cast("Q")

    def __len__(self) -> int:
        return self.header.count

    @functools.cached_property
    def identity(self) -> int:
        """A number that is equal for manifests with the same paths and sizes. That in the headers
        does not say in which folder a file is."""
        digest = xxhash.xxh3_64(self.header.identity.to_bytes(8, "little"))
        digest.update(self.firsts.cast("B"))
        return digest.intdigest()

    def folder_of(self, index: int) -> int:
        """Returns the number of the folder with a file."""
        return bisect.bisect_right(self.firsts, index) - 1

    def folder_path(self, folder: int) -> bytes:
        """Returns the path of a folder below the root; b"" for the root."""
        start = self.path_ends[folder - 1] if folder else 0
        at = self._paths_at
        return self._name_map[at + start : at + self.path_ends[folder]]

    def files_of(self, folder: int) -> tuple[int, int]:
        """Returns the number of the first file in a folder, and that behind its last one."""
        last = folder + 1 == len(self.firsts)
        return self.firsts[folder], len(self) if last else self.firsts[folder + 1]

    def name(self, index: int) -> bytes:
        """Returns the name of a file in its folder."""
        return self.name_bytes(self.name_ends[index - 1] if index else 0, self.name_ends[index])

    def name_bytes(self, start: int, end: int) -> bytes:
        """Returns a part of all names."""
        return self._name_map[self._names_at + start : self._names_at + end]

    def _numbers_at(self, start: int, end: int) -> memoryview:
        return memoryview(self._name_map)[start:end].cast("Q")


def _open(path: Path) -> OwnedFd:
    return opened(os.open, path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)


def _mapped_inos(fd: int) -> tuple[mmap.mmap, InoTableHeader]:
    size = os.fstat(fd).st_size
    header = InoTableHeader.decode(os.pread(fd, INO_HEADER_BYTES, 0), size)
    return mmap.mmap(fd, size, prot=mmap.PROT_READ), header


def _mapped_names(fd: int) -> tuple[mmap.mmap, NameTableHeader]:
    size = os.fstat(fd).st_size
    header = NameTableHeader.decode(os.pread(fd, NAME_HEADER_BYTES, 0), size)
    return mmap.mmap(fd, size, prot=mmap.PROT_READ), header


def _write(path: Path, header: bytes, sections: Iterable[array[int] | bytearray]) -> None:
    with open(path, "xb", opener=functools.partial(os.open, mode=0o600)) as file:
        file.write(header)
        for section in sections:
            file.write(section)
