"""What a store can do, as its adapter declares it. Pure.

The master and the worker choose by these declarations, never by the scheme. The conformance suite
tests order, directories, identity, precision, and the writing half without its limits and `append`.
An adapter that is not sure declares less.
"""

from __future__ import annotations

import enum

import msgspec


class Identity(enum.Enum):
    """What distinguishes two versions of a file."""

    CONTENT = "content"  # an etag or a generation: `Fingerprint.etag` changes with every change
    TIME = "time"  # size and mtime: a change that keeps both is not seen
    FIXED = "fixed"  # nothing: a file never changes, it only appears and disappears


class MultipartLimits(msgspec.Struct, frozen=True):
    """The limits of an upload in parts. All parts but the last have one size."""

    min_part_bytes: int
    max_part_bytes: int
    max_parts: int


class Writing(msgspec.Struct, frozen=True, kw_only=True):
    """What the store can do for writers. `create_only`, `replace_if`, `delete_if`: the store itself
    compares and changes in one step. Where one is False, the adapter compares first, and a change
    in between is lost."""

    create_only: bool
    replace_if: bool
    delete_if: bool
    max_put_bytes: int  # of one `put`
    multipart: MultipartLimits | None
    copy: bool
    rename: bool  # in one step
    append: bool  # to a file that exists


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What the store can do. `writing` is None for an adapter that only reads."""

    ordered_listings: bool  # pages are in the order of `order_key` (else: any order)
    directories: bool  # directories are objects (file://), not implied by keys (s3://)
    posix_attributes: bool  # mode, uid and gid are the origin's own
    symlinks: bool
    identity: Identity
    refuses_other_versions: bool  # a read names its version; else the adapter compares the reply
    mtime_precision_ns: int
    # `Entry.names_changed_ns` changes when a name is added to a directory, removed from it, or
    # given to another file.
    directory_times: bool = False
    requests: bool = False  # `ask` may return a request, so that processes download large files
    writing: Writing | None = None
