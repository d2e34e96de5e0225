"""The last complete background walks in the master's store.

    BACKGROUND  root ino (8 BE)                        -> of a whole source, on request
                root ino (8 BE) `policy_key` of a path -> of a rule

Each value is a msgpack array: the key of the UFS, the path or nil, a map `Walked`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from master.state.background import Forget, Save, SourceId, Target, Walked
from master.state.records import ino_key, policy_key
from master.store.base import Reader, Table, Writer

MOST: Final = 1 << 20
_ABOVE_ALL: Final = b"\xff" * 8
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[str, bytes | None, Walked]).decode


def background_key(target: Target) -> bytes:
    where = b"" if target.path is None else policy_key(target.path)
    return ino_key(target.source.root) + where


def load_walks(reader: Reader) -> list[tuple[Target, Walked]]:
    """Returns what is saved."""
    found = []
    for key, value in reader.scan(Table.BACKGROUND, b"", _ABOVE_ALL, MOST):
        source, path, walked = _decode(value)
        found.append((Target(SourceId(int.from_bytes(key[:8], "big"), source), path), walked))
    return found


def write_walks(writer: Writer, actions: Iterable[Save | Forget]) -> None:
    """Makes saves and deletions durable, in order."""
    for action in actions:
        key = background_key(action.target)
        if isinstance(action, Save):
            value = _encode((action.target.source.key, action.target.path, action.walked))
            writer.put(Table.BACKGROUND, [(key, value)])
        else:
            writer.delete(Table.BACKGROUND, [key])
