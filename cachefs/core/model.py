"""The nouns of CacheFS: inode, content id, nodeid, fingerprint, origin. Pure values, no behaviour
that reads a clock or a disk.

Glossary: *ino* names a file in the master's store; *content id* names its bytes for ever; *nodeid*
is what the kernel is told (ino + incarnation).
"""

from __future__ import annotations

import enum
import struct
from typing import Final, NewType

import msgspec

from cachefs.core.policies import NO_RULE, Rule

NamespaceId = NewType("NamespaceId", bytes)  # 16 bytes, a UUID drawn when the store was made

ROOT_INO: Final = 1  # also FUSE_ROOT_ID
INO_BITS: Final = 48
MAX_INO: Final = (1 << INO_BITS) - 1
MAX_INCARNATION: Final = (1 << 16) - 1
PAGE_BYTES: Final = 1 << 20  # unit of presence, transfer and checksum
SMALL_FILE_BYTES: Final = 8 << 20  # a cold file up to this waits for the whole file at open
MAX_NAME_BYTES: Final = 255


class Kind(enum.IntEnum):
    """What an inode is."""

    FILE = 1
    DIRECTORY = 2
    SYMLINK = 3


class Fingerprint(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What tells one version of an object from another at the origin. A change makes a new ino.

    `mtime_ns` has the precision that *every* answer of the connector has (whole seconds on S3,
    where HEAD has no more); `etag` is "" where the store has none. A directory's is its kind alone.
    """

    kind: Kind
    size: int = 0
    mtime_ns: int = 0
    etag: str = ""


class Inode(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The attributes of one ino. `size` in bytes; mode, uid, gid are -1 where the origin has none
    (the mount's defaults are shown then). Trailing fields may be added, never moved."""

    ino: int
    kind: Kind
    size: int = 0
    mtime_ns: int = 0
    etag: str = ""
    version: int = 0
    nonce: int = 0
    mode: int = -1  # permission bits only
    uid: int = -1
    gid: int = -1
    target: bytes = b""  # of a symlink

    @property
    def fingerprint(self) -> Fingerprint:
        if self.kind is Kind.DIRECTORY:
            return Fingerprint(Kind.DIRECTORY)
        return Fingerprint(self.kind, self.size, self.mtime_ns, self.etag)


_CONTENT = struct.Struct(">16sQIQ")


class ContentId(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Names bytes for ever: a reused ino or a rolled-back store can never name other bytes.

    `nonce` is 64 random bits drawn when the inode was born.
    """

    namespace: NamespaceId
    ino: int
    version: int
    nonce: int

    @property
    def key(self) -> bytes:
        """36 bytes: what the name says."""
        return _CONTENT.pack(self.namespace, self.ino, self.version, self.nonce)

    @staticmethod
    def name_of(namespace: NamespaceId, inode: Inode) -> str:
        """`of(namespace, inode).name`, for whoever makes many."""
        return _CONTENT.pack(namespace, inode.ino, inode.version, inode.nonce).hex()

    @property
    def name(self) -> str:
        """72 hex digits: the name of the cache file and of its published link."""
        return self.key.hex()

    @classmethod
    def of(cls, namespace: NamespaceId, inode: Inode) -> ContentId:
        return cls(namespace, inode.ino, inode.version, inode.nonce)

    @classmethod
    def parse(cls, name: str) -> ContentId:
        """The inverse of `name`. Raises ValueError for anything else."""
        return cls.of_key(bytes.fromhex(name))

    @classmethod
    def of_key(cls, key: bytes) -> ContentId:
        """The inverse of `key`. Raises ValueError for anything else."""
        if len(key) != _CONTENT.size:
            raise ValueError(f"not a content id: {len(key)} bytes instead of {_CONTENT.size}")
        namespace, ino, version, nonce = _CONTENT.unpack(key)
        return cls(NamespaceId(namespace), ino, version, nonce)


class Origin(msgspec.Struct, frozen=True, gc=False):
    """Where a file's bytes come from: the master's answer to a worker that must fill."""

    content: ContentId
    ufs: str  # key of the mount table's UFS spec (see `UfsSpec`)
    path: bytes  # below the UFS root, '/'-separated, no leading '/'
    etag: str
    size: int
    mtime_ns: int
    rule: Rule = NO_RULE  # what policies say of it
    alone: bool = False  # others in its directory may have other rules


class UfsSpec(msgspec.Struct, frozen=True):
    """One root of the mount table. `options` never holds a secret, only references (a profile name,
    a path); whoever reads bytes resolves them."""

    url: str  # s3://bucket/prefix, file:///path
    options: dict[str, str] = {}

    @property
    def key(self) -> str:
        """Stable identity of the source: the normalised URL and what changes its meaning."""
        endpoint = self.options.get("endpoint_url", "").rstrip("/")
        return f"{self.url.rstrip('/')}|{endpoint}" if endpoint else self.url.rstrip("/")


def nodeid(ino: int, incarnation: int = 0) -> int:
    """ino (48 bits) and incarnation (16 bits) as the kernel's 64-bit nodeid; the root stays 1."""
    if not 0 < ino <= MAX_INO or not 0 <= incarnation <= MAX_INCARNATION:
        raise ValueError(f"out of range: ino {ino}, incarnation {incarnation}")
    return incarnation << INO_BITS | ino


def split_nodeid(value: int) -> tuple[int, int]:
    """A nodeid as (ino, incarnation)."""
    return value & MAX_INO, value >> INO_BITS
