"""The basic values of CacheFS: inode, content id, nodeid, fingerprint, origin. They read no clock
and no disk.

Glossary: an *ino* names a file in the master's store. A *content id* names one version of its
bytes, for ever. A *nodeid* is the kernel's number of an inode (ino + incarnation).
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
SMALL_FILE_BYTES: Final = 8 << 20  # up to this size an open waits until the whole file is cached
MAX_NAME_BYTES: Final = 255


class Kind(enum.IntEnum):
    """The type of an inode."""

    FILE = 1
    DIRECTORY = 2
    SYMLINK = 3


class Fingerprint(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The values that distinguish two versions of an object. A change creates a new ino. `mtime_ns`
    has the precision that *every* reply of the connector has (whole seconds on S3, where HEAD has
    no more); `etag` is "" if the store has none. A directory's fingerprint is its kind only."""

    kind: Kind
    size: int = 0
    mtime_ns: int = 0
    etag: str = ""


class Inode(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The attributes of one ino. `size` in bytes. mode, uid and gid are -1 if the origin has none
    (then the mount shows its defaults). Trailing fields may be added, never moved."""

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
    """The permanent name of a file's bytes: a reused ino or a rolled-back store never gets the same
    one. `nonce` is 64 random bits drawn when the inode was created."""

    namespace: NamespaceId
    ino: int
    version: int
    nonce: int

    @property
    def key(self) -> bytes:
        """The packed fields, 36 bytes."""
        return _CONTENT.pack(self.namespace, self.ino, self.version, self.nonce)

    @staticmethod
    def key_at(namespace: NamespaceId, inode: Inode) -> bytes:
        """Returns the key of an inode's content without creating the ContentId."""
        return _CONTENT.pack(namespace, inode.ino, inode.version, inode.nonce)

    @staticmethod
    def name_of(namespace: NamespaceId, inode: Inode) -> str:
        """Returns the name of an inode's content without creating the ContentId."""
        return _CONTENT.pack(namespace, inode.ino, inode.version, inode.nonce).hex()

    @property
    def name(self) -> str:
        """The key as 72 hex digits: the name of the cache file and of its published link."""
        return self.key.hex()

    @classmethod
    def of(cls, namespace: NamespaceId, inode: Inode) -> ContentId:
        return cls(namespace, inode.ino, inode.version, inode.nonce)

    @classmethod
    def parse(cls, name: str) -> ContentId:
        """Returns the content id with this name. Raises ValueError for anything else."""
        return cls.of_key(bytes.fromhex(name))

    @classmethod
    def of_key(cls, key: bytes) -> ContentId:
        """Returns the content id with this key. Raises ValueError for anything else."""
        if len(key) != _CONTENT.size:
            raise ValueError(f"not a content id: {len(key)} bytes instead of {_CONTENT.size}")
        namespace, ino, version, nonce = _CONTENT.unpack(key)
        return cls(NamespaceId(namespace), ino, version, nonce)


class Origin(msgspec.Struct, frozen=True, gc=False):
    """The location of a file's bytes at the origin: the master's reply to a worker that must
    fill."""

    content: ContentId
    ufs: str  # key of the mount table's UFS spec (see `UfsSpec`)
    path: bytes  # below the UFS root, '/'-separated, no leading '/'
    etag: str
    size: int
    mtime_ns: int
    rule: Rule = NO_RULE  # of its policies
    alone: bool = False  # other files of its directory may have other rules


class UfsSpec(msgspec.Struct, frozen=True):
    """A source of the mount table. `options` never holds a secret, only references (a profile
    name, a path), which the process that reads the source resolves."""

    url: str  # s3://bucket/prefix, file:///path
    options: dict[str, str] = {}

    @property
    def key(self) -> str:
        """The stable identity of the source: its normalised URL, and its endpoint if it has one."""
        endpoint = self.options.get("endpoint_url", "").rstrip("/")
        return f"{self.url.rstrip('/')}|{endpoint}" if endpoint else self.url.rstrip("/")


def nodeid(ino: int, incarnation: int = 0) -> int:
    """Returns the kernel's nodeid: ino (48 bits) and incarnation (16 bits). The root stays 1."""
    if not 0 < ino <= MAX_INO or not 0 <= incarnation <= MAX_INCARNATION:
        raise ValueError(f"out of range: ino {ino}, incarnation {incarnation}")
    return incarnation << INO_BITS | ino


def split_nodeid(value: int) -> tuple[int, int]:
    """Returns (ino, incarnation) of a nodeid."""
    return value & MAX_INO, value >> INO_BITS
