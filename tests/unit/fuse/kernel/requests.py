"""Requests as the kernel writes them to whoever reads /dev/fuse, built field by field."""

from __future__ import annotations


def u16(value: int) -> bytes:
    return value.to_bytes(2, "little")


def u32(value: int) -> bytes:
    return value.to_bytes(4, "little")


def i32(value: int) -> bytes:
    return value.to_bytes(4, "little", signed=True)


def u64(value: int) -> bytes:
    return value.to_bytes(8, "little")


def request(
    opcode: int, body: bytes = b"", *, unique: int = 2, nodeid: int = 1, pid: int = 4242
) -> bytes:
    """struct fuse_in_header, and what follows it."""
    header = u32(40 + len(body)) + u32(opcode) + u64(unique) + u64(nodeid)
    header += u32(1000) + u32(1001) + u32(pid)  # uid, gid, pid
    header += u16(0) + u16(0)  # total_extlen, padding
    assert len(header) == 40
    return header + body


def init_request(minor: int, flags: int, *, major: int = 7, max_readahead: int = 131072) -> bytes:
    """FUSE_INIT of a kernel that speaks 7.36 or later: 64 bytes of body."""
    body = u32(major) + u32(minor) + u32(max_readahead)
    body += u32(flags & 0xFFFFFFFF) + u32(flags >> 32) + b"\0" * 44
    return request(26, body)


def read_body(fh: int, offset: int, size: int) -> bytes:
    """struct fuse_read_in, of READ and the two that read directories."""
    return u64(fh) + u64(offset) + u32(size) + u32(0) + u64(0) + u32(0) + u32(0)


def open_body(flags: int = 0) -> bytes:
    return u32(flags) + u32(0)


def release_body(fh: int) -> bytes:
    return u64(fh) + u32(0) + u32(0) + u64(0)
