"""Bytes of the protocol, compared with the layouts of the kernel's `linux/fuse.h` by hand."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefs.core.errors import ProtocolError
from cachefs.fuse.kernel import codec
from cachefs.fuse.kernel.codec import Notify, Op
from tests.unit.fuse.kernel.requests import i32, init_request, request, u32, u64

u64s = st.integers(0, 2**64 - 1)
names = st.binary(min_size=1, max_size=255).filter(lambda name: b"\0" not in name)


# ---- parsing ----


@given(st.binary(max_size=200))
def test_any_bytes_are_a_whole_request_or_an_error(data: bytes) -> None:
    try:
        parsed = codec.parse_init(bytearray(data))
    except ProtocolError:
        return
    assert len(data) >= 56
    assert data[:16] == u32(len(data)) + u32(parsed.opcode) + u64(parsed.unique)


@given(u64s, st.integers(0, 2**32 - 1), st.binary(min_size=12, max_size=64))
def test_init_is_parsed_as_it_was_built(unique: int, major: int, rest: bytes) -> None:
    data = request(Op.INIT, u32(major) + rest, unique=unique)
    parsed = codec.parse_init(bytearray(data))
    assert (parsed.unique, parsed.major) == (unique, major)


@pytest.mark.parametrize("received", [0, 1, 39])
def test_what_is_shorter_than_a_header_is_an_error(received: int) -> None:
    with pytest.raises(ProtocolError, match="a request of"):
        codec.parse_init(bytearray(init_request(40, 0))[:received])


@pytest.mark.parametrize("lie", [-1, 1])
def test_a_length_that_is_not_what_was_read_is_an_error(lie: int) -> None:
    data = init_request(40, 0)
    with pytest.raises(ProtocolError, match="header says"):
        codec.parse_init(bytearray(data + b"\0" * 8)[: len(data) + lie])


def test_a_body_that_is_too_short_is_an_error() -> None:
    codec.parse_init(request(Op.INIT, b"\0" * 16))
    with pytest.raises(ProtocolError):
        codec.parse_init(request(Op.INIT, b"\0" * 15))


@given(names)
def test_a_name_ends_its_request(name: bytes) -> None:
    data = request(Op.LOOKUP, name + b"\0")
    assert codec.name_in(bytearray(data) + b"older\0", len(data)) == name


@given(st.binary(max_size=20))
def test_any_body_is_a_name_or_an_error(body: bytes) -> None:
    data = request(Op.LOOKUP, body)
    try:
        name = codec.name_in(data, len(data))
    except ProtocolError:
        assert b"\0" in body[:-1] or body in (b"", b"\0") or not body.endswith(b"\0")
    else:
        assert body == name + b"\0"


@given(st.integers(0, 2**64 - 1))
def test_the_upper_flags_of_init_count_only_where_the_kernel_says_so(flags: int) -> None:
    data = init_request(40, flags)
    parsed = codec.parse_init(data)
    assert (parsed.major, parsed.minor, parsed.max_readahead) == (7, 40, 131072)
    assert parsed.flags == (flags if flags & 1 << 30 else flags & 0xFFFFFFFF)


def test_init_of_an_old_kernel_has_no_upper_flags() -> None:
    data = request(Op.INIT, u32(7) + u32(31) + u32(0) + u32(1 << 30 | 1))
    assert codec.parse_init(data).flags == 1 << 30 | 1


# ---- replies ----


def test_an_error_is_negative_and_repeats_the_number() -> None:
    assert codec.error_reply(2**63 | 6, errno.ENOENT) == u32(16) + i32(-2) + u64(2**63 | 6)
    assert codec.error_reply(6, 0) == u32(16) + i32(0) + u64(6)


def test_data() -> None:
    assert codec.data_header(9, 5) == u32(21) + i32(0) + u64(9)


def test_open() -> None:
    golden = u32(32) + i32(0) + u64(9)
    golden += u64(77) + u32(128 | 32) + i32(3)  # fh, open_flags, backing_id
    assert codec.open_reply(9, 77, 128 | 32, 3) == golden


def test_statfs() -> None:
    golden = u32(96) + i32(0) + u64(9)
    golden += u64(10) * 3 + u64(20) * 2  # blocks bfree bavail, files ffree
    golden += u32(4096) + u32(255) + u32(4096) + u32(0)  # bsize namelen frsize padding
    golden += u32(0) * 6  # spare
    assert codec.statfs_reply(9, 10, 20, 4096, 255) == golden


def test_an_entry_of_a_directory_is_padded_to_eight_bytes() -> None:
    golden = u64(5) + u64(1 << 32 | 7) + u32(3) + u32(8) + b"abc" + b"\0" * 5
    assert codec.dirent(5, 1 << 32 | 7, 8, b"abc") == golden


@given(names)
def test_entries_of_any_name_length_are_aligned(name: bytes) -> None:
    record = codec.dirent(1, 1, 4, name)
    assert len(record) % 8 == 0
    assert record[24 : 24 + len(name)] == name
    assert len(record) - 24 - len(name) < 8
    assert not record[24 + len(name) :].strip(b"\0")


# ---- notifications ----


def test_a_name_to_forget() -> None:
    golden = u32(16 + 16 + 4) + i32(3) + u64(0)  # code FUSE_NOTIFY_INVAL_ENTRY, unique 0
    golden += u64(1) + u32(3) + u32(1) + b"abc\0"  # parent namelen flags
    assert codec.inval_entry(1, b"abc") == golden


@pytest.mark.parametrize(("code", "number"), [(Notify.RESEND, 7), (Notify.INC_EPOCH, 8)])
def test_notifications_without_a_body(code: Notify, number: int) -> None:
    assert codec.notification(code) == u32(16) + i32(number) + u64(0)


def test_what_names_a_backing_file() -> None:
    assert codec.BACKING_MAP.pack(5, 0, 0) == i32(5) + u32(0) + u64(0)
