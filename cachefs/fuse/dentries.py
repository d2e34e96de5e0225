"""The client's bounded metadata cache: names, inodes, and recent invalidations of both.

Records stay encoded: 64k inodes and names take about 40 MB. An inode's record never changes, it
only expires: `Known.expires_at` bounds answers about names and attributes, while `open` may use an
expired record. A name leads to an ino and a nonce: after a rollback of the metadata store the ino
may belong to another file, to which the name must not lead. All times are those of the caller's
clock, in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from cachefs.core.invalidation_log import InvalidationLog
from cachefs.core.model import Inode, Kind
from cachefs.core.two_generation_map import TwoGenerationMap

DEFAULT_INODES: Final = 65536
NO_INO: Final = 0  # the name is known not to exist

Listed = tuple[bytes, Inode, bytes]  # name, inode, the encoded inode

_DIRECTORY: Final = Kind.DIRECTORY
_decode_inode = msgspec.msgpack.Decoder(Inode).decode
_decode_inodes = msgspec.msgpack.Decoder(list[Inode]).decode
_ARRAY: Final = b"\xdd"  # of msgpack; its length follows in 32 bits
encode_inode = msgspec.msgpack.Encoder().encode


def decode_inodes(records: Sequence[bytes]) -> list[Inode]:
    """Returns the inodes of encoded records, decoded in one call."""
    return _decode_inodes(_ARRAY + len(records).to_bytes(4, "big") + b"".join(records))


class Known(NamedTuple):
    """An encoded inode and until when it is current."""

    record: bytes
    expires_at: float

    def expired(self) -> Known:
        return Known(self.record, 0.0)


class MetadataCache:
    """Inodes by ino, names by (parent, name), parents of directories."""

    def __init__(self, limit: int = DEFAULT_INODES) -> None:
        self._inodes: TwoGenerationMap[int, Known] = TwoGenerationMap(limit)
        # (parent, name) -> ino, nonce, end of validity
        self._names: TwoGenerationMap[tuple[int, bytes], tuple[int, int, float]] = TwoGenerationMap(
            limit
        )
        self._parents: TwoGenerationMap[int, int] = TwoGenerationMap(limit // 8)
        self.noted = InvalidationLog()

    def inode(self, ino: int) -> Inode | None:
        """Returns the inode of `ino` if it is cached, even when it has expired."""
        known = self._inodes.get(ino)
        return _decode_inode(known[0]) if known is not None else None

    def current(self, ino: int, now: float) -> tuple[Inode, float] | None:
        """Returns the inode and its validity in s; None on a miss."""
        known = self._inodes.get(ino)
        if known is None or known.expires_at <= now:
            return None
        return _decode_inode(known.record), known.expires_at - now

    def lookup(self, parent: int, name: bytes, now: float) -> tuple[Inode | None, float] | None:
        """Returns the inode of a name (None: absent) and its validity in s; None on a miss."""
        entry = self._names.get((parent, name))
        if entry is None or entry[2] <= now:
            return None
        ino, nonce, expires_at = entry
        if ino == NO_INO:
            return None, expires_at - now
        inode = self.inode(ino)
        if inode is None or inode.nonce != nonce:
            return None
        return inode, expires_at - now

    def parent(self, ino: int) -> int:
        """Returns the directory in which a directory was last seen, `ino` if that is unknown."""
        return self._parents.get(ino) or ino

    def put_inode(self, ino: int, record: bytes, expires_at: float) -> None:
        self._inodes.put(ino, Known(record, expires_at))

    def put_name(self, parent: int, name: bytes, inode: Inode | None, expires_at: float) -> None:
        """Records to what a name leads; None: the name does not exist."""
        ino, nonce = (NO_INO, 0) if inode is None else (inode.ino, inode.nonce)
        self._names.put((parent, name), (ino, nonce, expires_at))

    def put_listing(self, parent: int, listing: Sequence[Listed], expires_at: float) -> None:
        """Records the rows of a page; equals a `put_name` and a `put_inode` for each."""
        self._names.put_all(
            {(parent, name): (inode.ino, inode.nonce, expires_at) for name, inode, _ in listing}
        )
        self._inodes.put_all({one[1].ino: Known(one[2], expires_at) for one in listing})
        for _, inode, _ in listing:
            if inode.kind is _DIRECTORY:
                self._parents.put(inode.ino, parent)

    def changed(self, listing: Sequence[Listed]) -> list[Inode]:
        """Returns the inodes of a page whose ino has another record here."""
        known = self._inodes.peek
        return [
            inode
            for _, inode, record in listing
            if (one := known(inode.ino)) is not None and one[0] != record
        ]

    def put_parent(self, ino: int, parent: int) -> None:
        self._parents.put(ino, parent)

    def forget_inode(self, ino: int) -> None:
        self._inodes.drop(ino)

    def invalidate(self, parent: int, name: bytes) -> None:
        """Drops a name that changed and expires the inode that it led to."""
        self.noted.note(parent, name)
        entry = self._names.get((parent, name))
        self._names.drop((parent, name))
        known = self._inodes.get(entry[0]) if entry is not None else None
        if entry is not None and known is not None:
            self._inodes.put(entry[0], known.expired())

    def forget_names(self) -> None:
        """Drops all names."""
        self._names.clear()

    def names(self) -> list[tuple[int, bytes]]:
        return self._names.keys()

    def invalidate_everything(self) -> None:
        self.noted.note_everything()
        self._names.clear()
        self._inodes.change_all(Known.expired)

    def sizes(self) -> tuple[int, int]:
        """Returns the numbers of cached (inodes, names)."""
        return len(self._inodes), len(self._names)
