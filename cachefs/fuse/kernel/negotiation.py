"""The negotiation at INIT, which the kernel sends once per mount. Pure.

The values are kept as long as the mount lives: a successor receives no INIT.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cachefs.core.errors import Unsupported
from cachefs.fuse.kernel import codec
from cachefs.fuse.kernel.codec import Init
from cachefs.fuse.kernel.stack_depth import ON_STACKED
from cachefs.fuse.mounting import CONGESTED, MAX_BACKGROUND

OUR_MINOR: Final = 41
MIN_MINOR: Final = 31  # Linux 5.4: MAX_PAGES, CACHE_SYMLINKS
PAGE_BYTES: Final = 4096
MAX_PAGES: Final = 128  # of one request: fits into a pipe (`splice`); more is slower
TIME_GRANULARITY_NS: Final = 1
_WANTED: Final = (
    Init.ASYNC_READ
    | Init.BIG_WRITES
    # Without READDIRPLUS_AUTO: with it `find -size` looks up 9 names of 10 one by one and takes 8
    # times as long. Without it, names alone (`ls -f`) take 3 us each longer.
    | Init.DO_READDIRPLUS
    | Init.PARALLEL_DIROPS
    | Init.MAX_PAGES
    | Init.CACHE_SYMLINKS  # an ino's target never changes
    | Init.EXPLICIT_INVAL_DATA
    | Init.INIT_EXT
    | Init.HAS_EXPIRE_ONLY
    | Init.HAS_RESEND
)


class Negotiated(msgspec.Struct, frozen=True):
    """The values of one mount. `why_not`: one line why there is no passthrough, "" when there is.
    `resend`: a successor can have requests sent again, so the mount can outlive its client."""

    minor: int
    flags: int
    max_write: int  # bytes; /dev/fuse is read into a buffer of `buffer_bytes`
    max_pages: int
    passthrough: bool
    resend: bool
    why_not: str = ""

    @property
    def buffer_bytes(self) -> int:
        return max(codec.MIN_BUFFER_BYTES, self.max_write + PAGE_BYTES)


def negotiate(
    request: bytes | bytearray,
    *,
    may_passthrough: str,
    pages_limit: int,
    stack_depth: int = ON_STACKED,
    default_permissions: bool = False,
) -> tuple[Negotiated, bytes]:
    """Returns the values and the reply to INIT. `may_passthrough` is "" when passthrough may be
    used, else why not; `pages_limit` is fs.fuse.max_pages_limit. `stack_depth`: see the module of
    this name. `default_permissions`: the kernel checks permissions, so it can also map owners for
    pods with user namespaces (idmapped mounts).

    Raises ProtocolError for a malformed request, Unsupported for a kernel that is too old.
    """
    asked = codec.parse_init(request)
    if asked.opcode != codec.Op.INIT or (asked.major, asked.minor) < (codec.MAJOR, MIN_MINOR):
        raise Unsupported(
            f"the kernel's FUSE protocol {asked.major}.{asked.minor} is too old",
            remedy="use Linux 5.4 or later, or --transport pyfuse3",
        )
    why_not = may_passthrough
    if not why_not and not asked.flags & Init.PASSTHROUGH:
        why_not = "the kernel has no FUSE passthrough (Linux 6.9 has)"
    wanted = _WANTED if why_not else _WANTED | Init.PASSTHROUGH
    if default_permissions:  # without them the kernel refuses the reply (fs/fuse/inode.c)
        wanted |= Init.ALLOW_IDMAP
    flags = int(asked.flags & wanted)
    max_pages = min(MAX_PAGES, pages_limit) if flags & Init.MAX_PAGES else 32
    values = Negotiated(
        minor=min(asked.minor, OUR_MINOR),
        flags=flags,
        max_write=max_pages * PAGE_BYTES,
        max_pages=max_pages,
        passthrough=bool(flags & Init.PASSTHROUGH),
        resend=bool(flags & Init.HAS_RESEND),
        why_not=why_not,
    )
    depth = stack_depth if values.passthrough else 0
    return values, _reply(asked.unique, values, asked.max_readahead, depth)


def _reply(unique: int, values: Negotiated, max_readahead: int, stack_depth: int) -> bytes:
    body = codec.INIT_OUT.pack(
        codec.MAJOR,
        values.minor,
        max(max_readahead, values.max_write),
        values.flags & 0xFFFFFFFF,
        MAX_BACKGROUND,
        CONGESTED,
        values.max_write,
        TIME_GRANULARITY_NS,
        values.max_pages,
        0,
        values.flags >> 32,
        stack_depth,
        0,
    )
    return codec.data_header(unique, len(body)) + body
