"""Which mount is which cover: a small file beside the record of the mount, for a successor.

The server numbers its orders; mountinfo does not show these numbers. A cover is recorded before it
is attached, so a cover without a record is none of the present server. The kernel uses the id of
a mount again; a record takes the place of another one with the same id.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from cachefs.core.errors import lacks_descriptors

_MAX_BYTES: Final = 1 << 20


class RecordedCover(msgspec.Struct, frozen=True, array_like=True):
    """The number of a cover and the id of its mount."""

    number: int
    mount_id: str

    def is_like(self, other: RecordedCover) -> bool:
        return self.number == other.number or self.mount_id == other.mount_id


_decode = msgspec.json.Decoder(list[RecordedCover]).decode
_encode = msgspec.json.Encoder().encode


class CoverRecords:
    """The file of one mount. A changing call holds a lock on its directory. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[RecordedCover]:
        """Returns the records, none if there is no readable file. Raises OSError if this process
        may open no more files: covers without a record are removed."""
        try:
            with open(self._path, "rb", opener=_open_own) as file:
                return _decode(file.read(_MAX_BYTES))
        except (OSError, msgspec.DecodeError) as err:
            if lacks_descriptors(err):
                raise
            return []

    def put(self, record: RecordedCover) -> None:
        with self._locked():
            self._write([*(one for one in self.read() if not one.is_like(record)), record])

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)

    def drop(self, number: int) -> None:
        with self._locked():
            self._write([record for record in self.read() if record.number != number])

    def _write(self, records: list[RecordedCover]) -> None:
        if not records:
            self._path.unlink(missing_ok=True)
            return
        new = self._path.with_suffix(".covers-new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(new, flags, 0o600), "wb") as file:
            file.write(_encode(records))
        os.replace(new, self._path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        fd = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def _open_own(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
