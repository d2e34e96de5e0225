"""The files of a manifest: the ino table that an order refers to, and the table of names. Pure.

Both have a header with magic, format, lengths and a checksum. Numbers are little-endian, because
all processes of one machine map these files; arrays start at multiples of 8. Only
`ino_table_bytes(n)` bytes are a valid ino table of n files, so a reader checks the size of the file
before it uses the array.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import msgspec
import xxhash

from cachefs.core.errors import BadConfig

INO_BYTES: Final = 8
NO_NAMESPACE: Final = bytes(16)  # the manifest was built without a session of the server
NO_POSITION: Final = -1

_INO_MAGIC: Final = b"CFSINOS\0"
_NAME_MAGIC: Final = b"CFSNAMES"
_FORMAT: Final = 1
_INOS: Final = struct.Struct("<8sIIQ16sqQ")
_NAMES: Final = struct.Struct("<8sIIQQQQQ")
_SUM: Final = struct.Struct("<Q")
INO_HEADER_BYTES: Final = 64
NAME_HEADER_BYTES: Final = 64
assert _INOS.size + _SUM.size == INO_HEADER_BYTES
assert _NAMES.size + _SUM.size == NAME_HEADER_BYTES


class InoTableHeader(msgspec.Struct, frozen=True):
    """The header of an ino table: `count` inode numbers follow it. `position`: of the namespace's
    events when the listing began; NO_POSITION: unknown. `identity`: equal for manifests with the
    same names and sizes in the same order, whatever their inode numbers are."""

    count: int
    namespace: bytes = NO_NAMESPACE
    position: int = NO_POSITION
    identity: int = 0

    def encode(self) -> bytes:
        """Returns the header's bytes."""
        fields = (self.count, self.namespace, self.position, self.identity)
        return _summed(_INOS.pack(_INO_MAGIC, _FORMAT, INO_HEADER_BYTES, *fields))

    @classmethod
    def decode(cls, data: bytes, file_bytes: int) -> InoTableHeader:
        """Returns the header of a file of `file_bytes` that starts with `data`. Raises BadConfig
        unless both agree."""
        fields = _checked(data, _INOS, _INO_MAGIC, "ino table")
        header = cls(*fields)
        _check_size(file_bytes, ino_table_bytes(header.count), "ino table")
        return header


class NameTableHeader(msgspec.Struct, frozen=True):
    """The header of a name table. These follow it: `count` sizes; `count` ends of names; for each
    of the `folders` its ino, its first file and the end of its path; the names; the paths."""

    count: int
    folders: int
    name_bytes: int
    path_bytes: int
    identity: int = 0

    def encode(self) -> bytes:
        """Returns the header's bytes."""
        fields = (self.count, self.folders, self.name_bytes, self.path_bytes, self.identity)
        return _summed(_NAMES.pack(_NAME_MAGIC, _FORMAT, NAME_HEADER_BYTES, *fields))

    @classmethod
    def decode(cls, data: bytes, file_bytes: int) -> NameTableHeader:
        """Returns the header of a file of `file_bytes` that starts with `data`. Raises BadConfig
        unless both agree."""
        header = cls(*_checked(data, _NAMES, _NAME_MAGIC, "name table"))
        _check_size(file_bytes, header.sections()[-1], "name table")
        return header

    def sections(self) -> tuple[int, ...]:
        """Returns where the sections start: sizes, ends of names, folders' inos, first files, ends
        of paths, names, paths; and where the file ends."""
        lengths = [INO_BYTES * self.count] * 2 + [INO_BYTES * self.folders] * 3
        starts = [NAME_HEADER_BYTES]
        for length in (*lengths, self.name_bytes, self.path_bytes):
            starts.append(starts[-1] + length)
        return tuple(starts)


def ino_table_bytes(count: int) -> int:
    """Returns the size of the ino table of `count` files."""
    return INO_HEADER_BYTES + INO_BYTES * count


def _summed(data: bytes) -> bytes:
    return data + _SUM.pack(xxhash.xxh3_64_intdigest(data))


def _checked(data: bytes, fields: struct.Struct, magic: bytes, what: str) -> tuple[Any, ...]:
    """Returns the fields after the length of the header."""
    whole = fields.size + _SUM.size
    if len(data) < whole or data[: len(magic)] != magic:
        raise BadConfig(f"not a manifest's {what}", remedy="build the manifest again")
    _, form, length, *values = fields.unpack_from(data)
    if form != _FORMAT:
        raise BadConfig(
            f"the manifest's {what} has format {form}, this version reads format {_FORMAT}",
            remedy="build the manifest with the same version of cachefs",
        )
    intact = _SUM.unpack_from(data, fields.size)[0] == xxhash.xxh3_64_intdigest(data[: fields.size])
    if length != whole or not intact:
        raise BadConfig(f"the manifest's {what} is damaged", remedy="build the manifest again")
    return tuple(values)


def _check_size(file_bytes: int, expected: int, what: str) -> None:
    if file_bytes != expected:
        raise BadConfig(
            f"the manifest's {what} has {file_bytes} bytes instead of {expected}",
            remedy="build the manifest again",
        )
