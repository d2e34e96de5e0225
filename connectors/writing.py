"""The interface for writing to a UFS: the half of a connector that only some adapters have.

An adapter with it declares `Capabilities.writing`; the conformance suite tests both. Every write
names what it expects at the target: ABSENT, ANY, or one version. Writes are all or nothing: a
reader sees the old file or the new one. A write that returned is durable.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final, Protocol, cast

import msgspec

from cachefs.core.errors import Unsupported
from cachefs.core.model import Fingerprint
from connectors.base import Connector


class Expect(enum.Enum):
    """What a write expects at its target, where it is not one version."""

    ABSENT = "absent"  # no file: else AlreadyExists
    ANY = "any"


Expectation = Expect | Fingerprint  # a version: another one is Stale, none is NotFound
ABSENT: Final = Expect.ABSENT
ANY: Final = Expect.ANY
# The calls that change what others see; a decorator must not repeat them blindly.
WRITES: Final = frozenset(
    {"put", "begin", "put_part", "finish", "abort", "copy", "rename", "delete", "mkdir"}
)


class Writer(Protocol):
    """The writing half. Raises the errors of `Connector`, and AlreadyExists, NotEmpty,
    IsADirectory, ReadOnly, NoSpace, Unsupported. Directories above a target are made if the store
    has directories.

    A call that fails with a retryable error may have happened. `begin`, `put_part`, `finish`,
    `abort` and every write that expects ANY may be repeated, except `rename`. For the others see
    `connectors.retry`."""

    def put(self, path: bytes, data: memoryview, expect: Expectation) -> Fingerprint:
        """Writes a whole file of at most `max_put_bytes`; returns its version."""

    def begin(self, path: bytes, part_bytes: int) -> bytes:
        """Begins an upload in parts. Returns its token, with which any process can go on. The
        token holds no secret. The file appears at `finish`."""

    def put_part(self, token: bytes, number: int, data: memoryview) -> bytes:
        """Writes a part; returns its receipt. Numbers count from 0; all parts but the last have
        `part_bytes`. Any order, any number at once; a part may be written again."""

    def finish(self, token: bytes, receipts: Sequence[bytes], expect: Expectation) -> Fingerprint:
        """Makes the file of the parts with these receipts, in the order of their numbers. Repeated
        after it succeeded, it returns the same version while the file exists. Raises NotFound if
        the upload was aborted."""

    def abort(self, token: bytes) -> None:
        """Ends an upload and drops its parts. An upload that has ended is no error."""

    def copy(
        self, source: bytes, version: Fingerprint, target: bytes, expect: Expectation
    ) -> Fingerprint:
        """Copies exactly that version of a file inside the store."""

    def rename(self, source: bytes, target: bytes, expect: Expectation) -> None:
        """Renames a file, or a directory with everything below it, in one step. Raises Unsupported
        for a store without it."""

    def delete(self, path: bytes, expect: Expectation) -> None:
        """Removes a file; with ANY, none is no error. With the fingerprint of a directory, removes
        an empty directory. Raises ValueError for ABSENT."""

    def mkdir(self, path: bytes, expect: Expect) -> None:
        """Makes a directory. With ANY, one that exists is no error."""


class WritableConnector(Connector, Writer, Protocol):
    """A connector with both halves."""


class Upload(msgspec.Struct, frozen=True, array_like=True):
    """The contents of a token. `id` is the store's own."""

    path: bytes
    part_bytes: int
    id: str

    def token(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def of(cls, token: bytes) -> Upload:
        """Raises ValueError for what is no token."""
        return msgspec.msgpack.decode(token, type=cls)


def writer_of(connector: Connector) -> Writer:
    """Returns the writing half of a connector. Raises Unsupported."""
    if connector.capabilities.writing is None:
        raise Unsupported("this source cannot be written: its connector only reads")
    return cast(WritableConnector, connector)
