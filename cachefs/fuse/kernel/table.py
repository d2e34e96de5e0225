"""The takeover table: the files that the kernel has open, in memory that outlives the client.

A memfd of a header and fixed slots, one per open handle. A slot's state is written last and cleared
first. The other numbers that change are stored atomically as whole words (`struct` stores byte by
byte). So every taken slot is whole, whenever its writer dies. Order at an open: slot -> backing id
registered with the kernel -> id written -> reply. Order at the last release of a nodeid: slot
closing -> id released -> slot free. One writer at a time: the client that serves.

    header  8s magic, u32 version, u32 slot bytes, u32 slots, u32 slots ever used, u32 last id,
            u32 1 if there is a lock; at 64 the lock (`cachefs.fuse.kernel.reader_lock`)
    slot    u64 fh, u64 nodeid, u64 size, i32 backing id, u8 mode, 2 bytes unused, u8 state
    nonce   u64, of the content that the handle has open; one for each slot, after all slots
    attributes  i64 mtime in ns, i64 uid, i64 gid, i32 mode, u32 version, of that content, u32 1 if
            they are known, 4 bytes unused; one for each slot, after all nonces

A table of version 2 ends with the nonces, one of version 1 with the slots. The client keeps what
such a table has no place for in memory of its own, which ends with the client. A mount whose table
has version 1 was made by a version that sent no generations to the kernel; later clients of that
mount send none either.
"""

from __future__ import annotations

import contextlib
import enum
import mmap
import os
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from cachefs.core.errors import TooManyOpenFiles, Unsupported
from cachefs.core.model import MAX_INO, Inode, Kind
from cachefs.fuse.kernel import reader_lock

VERSION: Final = 3
WITHOUT_ATTRIBUTES: Final = 2  # version of tables without attributes
WITHOUT_NONCES: Final = 1  # version of tables without nonces and attributes
MAGIC: Final = b"cachefs\0"
SLOTS: Final = 1 << 20  # 32 MiB of address space; memory only for those that were used
_HEADER: Final = struct.Struct("<8sIIIII")
_WORD_BYTES: Final = 4
_USED_AT: Final = 20
_LAST_ID_AT: Final = 24
_FIRST_SLOT_AT: Final = 4096
_SLOT: Final = struct.Struct("<QQQiBxxB")
_SLOT_BYTES: Final = _SLOT.size
_ID_AT: Final = 24
_STATE_AT: Final = _SLOT.size - 1
_NONCE: Final = struct.Struct("<Q")
_ATTRIBUTES: Final = struct.Struct("<qqqiII4x")
_FREE, _TAKEN, _CLOSING = 0, 1, 2


class Mode(enum.IntEnum):
    """The way in which the kernel reads a nodeid: requests to the client, or the backing file."""

    CACHED = 1
    PASSTHROUGH = 2


class Slot(NamedTuple):
    """An open handle. `inode`: of the opened content, without its etag; its nonce 0: not known.
    `backing_id` 0: none, or not registered yet. `has_attributes`: whether mtime, mode and owner of
    the inode are known."""

    fh: int
    nodeid: int
    inode: Inode
    backing_id: int
    mode: int
    has_attributes: bool = True


class TakeoverTable:
    """The mapped table. `fd` is the memfd, for a successor; `close` unmaps and closes it."""

    def __init__(self, fd: int) -> None:
        """Maps a table. Raises Unsupported for one of another version."""
        self.fd = fd
        header = os.pread(fd, _HEADER.size, 0).ljust(_HEADER.size, b"\0")
        magic, version, slot_bytes, slots, used, _ = _HEADER.unpack(header)
        is_known = WITHOUT_NONCES <= version <= VERSION
        if not is_known or (magic, slot_bytes, slots) != (MAGIC, _SLOT.size, SLOTS):
            raise Unsupported(f"a takeover table of version {version}, this is {VERSION}")
        self.has_nonces = version != WITHOUT_NONCES
        self._map = mmap.mmap(fd, _table_bytes(version))
        own = self._map if version == VERSION else mmap.mmap(-1, _table_bytes(VERSION))
        self._nonces = self._map if self.has_nonces else own
        self._attributes = own
        self._words = memoryview(self._map).cast("I")
        self._used: int = used
        self._places: dict[int, int] = {}  # fh -> offset of its slot
        self._free: list[int] = []  # offsets of free slots
        self._closing: list[tuple[int, int]] = []  # (offset of the slot, backing id)
        for number in range(used):
            place = _FIRST_SLOT_AT + number * _SLOT_BYTES
            self._adopt(place, *self._read(place))

    @classmethod
    def create(cls) -> TakeoverTable:
        return cls(cls.make())

    @staticmethod
    def make() -> int:
        """Creates an empty table and returns its memfd, for a supervisor, which only holds it."""
        fd = os.memfd_create("cachefs-takeover", os.MFD_CLOEXEC)
        os.ftruncate(fd, _table_bytes(VERSION))
        os.pwrite(fd, _HEADER.pack(MAGIC, VERSION, _SLOT.size, SLOTS, 0, 0), 0)
        reader_lock.create(fd)
        return fd

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, fh: int) -> bool:
        return fh in self._places

    def slots(self) -> Iterator[Slot]:
        """Yields every open handle."""
        for place in list(self._places.values()):
            yield self._read(place)[0]

    def slot(self, fh: int) -> Slot:
        """Returns an open handle."""
        return self._read(self._places[fh])[0]

    def add(
        self, fh: int, nodeid: int, mode: Mode, inode: Inode, *, has_attributes: bool = True
    ) -> None:
        """Takes a slot, without a backing id yet. Replaces the slot of a known `fh`: its request
        was resent. Raises TooManyOpenFiles."""
        place = self._places.get(fh)
        if place is None:
            place = self._free.pop() if self._free else self._take_new()
            self._places[fh] = place
        else:
            self._map[place + _STATE_AT] = _FREE
        _ATTRIBUTES.pack_into(
            self._attributes, _attributes_at(place),
            inode.mtime_ns, inode.uid, inode.gid, inode.mode, inode.version, has_attributes,
        )  # fmt: skip
        _NONCE.pack_into(self._nonces, _nonce_at(place), inode.nonce)
        _SLOT.pack_into(self._map, place, fh, nodeid, inode.size, 0, mode, _TAKEN)

    def set_backing(self, fh: int, backing_id: int, *, is_new: bool) -> None:
        """Records the handle's backing id. `is_new`: no earlier handle on the nodeid has it."""
        self._words[(self._places[fh] + _ID_AT) // _WORD_BYTES] = backing_id
        if is_new:
            self._words[_LAST_ID_AT // _WORD_BYTES] = backing_id

    def closing(self, fh: int) -> None:
        """Marks a handle as closing, before its backing id is released."""
        self._map[self._places[fh] + _STATE_AT] = _CLOSING

    def remove(self, fh: int) -> None:
        """Frees the slot of a handle. Ignores an unknown one: its release was resent."""
        place = self._places.pop(fh, None)
        if place is not None:
            self._map[place + _STATE_AT] = _FREE
            self._free.append(place)

    def take_closing(self) -> list[int]:
        """Returns backing ids that a predecessor was releasing when it died; frees their slots."""
        found, self._closing = self._closing, []
        for place, _ in found:
            self._map[place + _STATE_AT] = _FREE
            self._free.append(place)
        return [backing_id for _, backing_id in found]

    @property
    def last_backing_id(self) -> int:
        """The last registered id; the kernel numbers ids upwards."""
        return self._words[_LAST_ID_AT // _WORD_BYTES]

    def close(self) -> None:
        """Unmaps and closes the table. Idempotent."""
        self._words.release()
        self._map.close()
        self._attributes.close()  # the same one, unless the table is of an earlier version
        with contextlib.suppress(OSError):
            os.close(self.fd)
        self.fd = -1

    def _take_new(self) -> int:
        """Returns the offset of the first slot that was never used. Raises TooManyOpenFiles."""
        if self._used >= SLOTS:
            raise TooManyOpenFiles(f"{SLOTS} files are open on this mount")
        self._used += 1
        self._words[_USED_AT // _WORD_BYTES] = self._used
        return _FIRST_SLOT_AT + (self._used - 1) * _SLOT_BYTES

    def _read(self, place: int) -> tuple[Slot, int]:
        fh, nodeid, size, backing_id, mode, state = _SLOT.unpack_from(self._map, place)
        (nonce,) = _NONCE.unpack_from(self._nonces, _nonce_at(place))
        attributes = _ATTRIBUTES.unpack_from(self._attributes, _attributes_at(place))
        mtime_ns, uid, gid, permissions, version, known = attributes
        inode = Inode(
            nodeid & MAX_INO, Kind.FILE, size, mtime_ns, "", version, nonce, permissions, uid, gid
        )
        return Slot(fh, nodeid, inode, backing_id, mode, bool(known)), state

    def _adopt(self, place: int, slot: Slot, state: int) -> None:
        if state == _TAKEN:
            self._places[slot.fh] = place
        elif state == _CLOSING:
            self._closing.append((place, slot.backing_id))
        else:
            self._free.append(place)


def _first_nonce_at() -> int:
    return _FIRST_SLOT_AT + SLOTS * _SLOT_BYTES


def _first_attributes_at() -> int:
    return _first_nonce_at() + SLOTS * _NONCE.size


def _table_bytes(version: int) -> int:
    """Returns the size of a table of that version."""
    if version == WITHOUT_NONCES:
        return _first_nonce_at()
    if version == WITHOUT_ATTRIBUTES:
        return _first_attributes_at()
    return _first_attributes_at() + SLOTS * _ATTRIBUTES.size


def _nonce_at(place: int) -> int:
    """Returns the offset of the nonce of the slot at offset `place`."""
    return _first_nonce_at() + _number_of(place) * _NONCE.size


def _attributes_at(place: int) -> int:
    """Returns the offset of the attributes of the slot at offset `place`."""
    return _first_attributes_at() + _number_of(place) * _ATTRIBUTES.size


def _number_of(place: int) -> int:
    return (place - _FIRST_SLOT_AT) // _SLOT_BYTES
