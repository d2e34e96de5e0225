"""The format of the master's store: what keys and values of each table are.

    META         b"meta"                      -> msgpack map `Meta`
                 b"feed" root ino (8 BE)      -> msgpack map `FeedRecord`
    DENTRIES     parent ino (8 BE) order_key  -> msgpack array `Inode`, checked_at (8 BE double)
    PARENTS      ino (8 BE)                   -> parent ino (8 BE) order_key
    DIRECTORIES  ino (8 BE)                   -> msgpack map `DirectoryState`
    EVENTS       seq (8 BE)                   -> msgpack array of (parent ino, name)
    MOUNTS       root ino (8 BE)              -> msgpack map `MountRecord`
    ORPHANS      ino (8 BE)                   -> b"" (a removed directory with children left)
    MEMBERS      as `master.state.membership` says; nothing here reads it
    HELD         parent ino (8 BE) order_key  -> ino (8 BE): a dentry of the mount table
    POLICIES     `policy_key` of a path       -> msgpack array of the path, a map `Policy`
    JOBS, JOB_PATHS, JOB_FAILURES as `master.store.jobs` says
    UNCHECKED    parent ino (8 BE) name       -> b"" (reported, not compared yet; no name: all)
    BACKGROUND as `master.store.background` says

`order_key` is the name, with a '/' behind it for a directory. `checked_at` is the wall time (s) at
which the origin last showed the name as it stands. It lies behind the inode, outside its array, so
that the inode's bytes go to clients as they are and `Inode` can grow at its end.
The root of the namespace is the dentry (0, b"/"). Inos are never reused.
Held dentries are the roots of the mount table and the directories above them: no origin's listing
removes or replaces one. `MountRecord.path` never changes, since held directories are not renamed.
An event entry `EVERYTHING` says that whatever is known of the namespace may be wrong, an entry
`POLICIES` that policies changed, `TIMES` that those did which concern what is cached already.
Policies belong to paths, whatever is there.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final

import msgspec

from cachefs.core.errors import BadConfig
from cachefs.core.model import Inode, NamespaceId, UfsSpec
from cachefs.core.policies import Policy
from cachefs.core.ufs import PUSH_INTERVAL_S
from master.state.feed_state import FeedRecord

FORMAT: Final = 1
META_KEY: Final = b"meta"
NO_PARENT: Final = 0
ROOT_KEY: Final = b"/"
EVERYTHING: Final = (NO_PARENT, b"/")  # no name has a '/'
POLICIES: Final = (NO_PARENT, b"policies/")
TIMES: Final = (NO_PARENT, b"times/")
ORDER_END: Final = b"\xff" * 256  # above every order key: no name is longer than 255 bytes

_INO = struct.Struct(">Q")
_TIME = struct.Struct(">d")
_encoder = msgspec.msgpack.Encoder()

ino_key = _INO.pack
decode_inode = msgspec.msgpack.Decoder(Inode).decode  # see `inode_bytes`


class Stored(msgspec.Struct, frozen=True, gc=False):
    """A dentry's value, decoded."""

    inode: Inode
    checked_at: float


class Meta(msgspec.Struct, frozen=True):
    """What the store knows of itself. `seq` is the position of the newest event, `first_seq` that
    of the oldest still kept (`seq` + 1 when none is)."""

    format: int
    namespace: NamespaceId
    next_ino: int
    seq: int = 0
    first_seq: int = 1
    names: int = 0
    hidden: int = 0


class DirectoryState(msgspec.Struct, frozen=True):
    """What is known of a directory as a whole. `listed_at`: wall time (s) at which its newest whole
    listing began, 0: not to be trusted. `complete`: it was once listed to the end."""

    listed_at: float = 0.0
    complete: bool = False
    hidden: int = 0


class MountRecord(msgspec.Struct, frozen=True):
    """One root of the mount table. `checked`: the origin answered at least once. `path` is below
    the namespace root, without a leading '/'."""

    source: UfsSpec
    path: bytes = b""  # of the root in the namespace
    checked: bool = False
    sync_interval_s: float = 60.0
    push: str = ""  # see `UfsRow.push`
    push_interval_s: float = PUSH_INTERVAL_S


def dentry_key(parent: int, order_key: bytes) -> bytes:
    return _INO.pack(parent) + order_key


def split_dentry_key(key: bytes) -> tuple[int, bytes]:
    """(parent ino, order key)."""
    return _INO.unpack_from(key)[0], key[8:]


def feed_key(root: int) -> bytes:
    return b"feed" + _INO.pack(root)


def policy_key(path: bytes) -> bytes:
    """A path as it is, a long one by its digest: keys are at most 511 bytes."""
    return b"p" + path if len(path) <= 500 else b"h" + hashlib.sha256(path).digest()


def name_of(order_key: bytes) -> bytes:
    return order_key[:-1] if order_key.endswith(b"/") else order_key


def encode_dentry(inode: Inode, checked_at: float) -> bytes:
    return _encoder.encode(inode) + _TIME.pack(checked_at)


def decode_dentry(value: bytes) -> Stored:
    return Stored(decode_inode(value[:-8]), _TIME.unpack_from(value, len(value) - 8)[0])


def inode_bytes(value: bytes) -> bytes:
    """The inode of a dentry's value, still encoded."""
    return value[:-8]


def encode(record: msgspec.Struct | list[tuple[int, bytes]] | tuple[bytes, Policy]) -> bytes:
    return _encoder.encode(record)


_meta_decoder = msgspec.msgpack.Decoder(Meta)
decode_directory = msgspec.msgpack.Decoder(DirectoryState).decode
decode_mount = msgspec.msgpack.Decoder(MountRecord).decode
decode_feed = msgspec.msgpack.Decoder(FeedRecord).decode
decode_policy = msgspec.msgpack.Decoder(tuple[bytes, Policy]).decode
decode_event = msgspec.msgpack.Decoder(list[tuple[int, bytes]]).decode


def decode_meta(value: bytes) -> Meta:
    """Raises BadConfig for a store that this version cannot read."""
    try:
        meta = _meta_decoder.decode(value)
    except msgspec.DecodeError as err:
        raise BadConfig(
            f"the metadata store is damaged: {err}", remedy="remove its directory"
        ) from err
    if meta.format != FORMAT:
        raise BadConfig(
            f"the metadata store has format {meta.format}, this version reads {FORMAT}",
            remedy="use the version that wrote it, or remove its directory",
        )
    return meta
