"""The durable record of the membership, and its encoding. Pure.

MEMBERS      b"members"   -> msgpack map `Record`
"""

from __future__ import annotations

from typing import Final

import msgspec

from cachefs.core.errors import BadConfig
from cachefs.core.placement import Member

RECORD_KEY: Final = b"members"


class Kept(msgspec.Struct, frozen=True):
    """A worker in the record."""

    id: str
    url: str
    weight: float
    host: str = ""
    capacity_bytes: int = 0
    version: str = ""
    draining: bool = False
    lost: bool = False
    drained_from: int = 0


class Record(msgspec.Struct, frozen=True):
    """The durable state: owning workers, epoch, and the members of the last settled epoch."""

    epoch: int = 0
    version: int = 0
    settled: tuple[Member, ...] = ()
    workers: tuple[Kept, ...] = ()
    between: tuple[tuple[Member, ...], ...] = ()  # see `View.between`


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)


def encode_record(record: Record) -> bytes:
    return _encoder.encode(record)


def decode_record(value: bytes) -> Record:
    """Returns the decoded record. Raises BadConfig."""
    try:
        return _decoder.decode(value)
    except msgspec.DecodeError as err:
        raise BadConfig(
            f"the record of the workers is damaged: {err}",
            remedy="remove the master's store: workers and names are found again",
        ) from err
