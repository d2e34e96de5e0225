"""A part of a directory as a view is to show it, and how that differs from its records. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from worker.store.view_records import NameRecord


@dataclass(frozen=True, slots=True)
class ViewPage:
    """The names of a directory whose order keys are above `after` and up to `upto` (b"": to the
    end). `path`: of the directory, below the top of the tree."""

    view: int
    ino: int
    path: tuple[bytes, ...]
    after: bytes
    upto: bytes
    names: Mapping[bytes, NameRecord]


class PageChange(NamedTuple):
    """`gone`: what the tree has under a name that is not wanted, or is another object now. `put`:
    what is wanted and new, or has other attributes."""

    gone: dict[bytes, NameRecord]
    put: dict[bytes, NameRecord]


def change(known: Mapping[bytes, NameRecord], wanted: Mapping[bytes, NameRecord]) -> PageChange:
    if not known:
        return PageChange({}, {**wanted})
    gone = {
        key: record
        for key, record in known.items()
        if key not in wanted or _object(record) != _object(wanted[key])
    }
    put = {key: record for key, record in wanted.items() if known.get(key) != record}
    return PageChange(gone, put)


def _object(record: NameRecord) -> tuple[int, int, bytes, bytes]:
    """Returns what the tree has a separate object for."""
    return record.ino, record.kind, record.content, record.target
