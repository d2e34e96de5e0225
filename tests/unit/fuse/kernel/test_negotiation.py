"""What is agreed on with kernels of different ages and machines of different settings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefs.client import connection
from cachefs.core.errors import ProtocolError, Unsupported
from cachefs.fuse.kernel.codec import Init, Op
from cachefs.fuse.kernel.negotiation import MAX_PAGES, Negotiated, negotiate
from cachefs.fuse.mounting import MAX_BACKGROUND
from tests.unit.fuse.kernel.requests import i32, init_request, request, u16, u32, u64
from worker.server import session

LINUX_6_18 = (1 << 32) - 1 | sum(1 << bit for bit in range(32, 43))
LINUX_6_6 = LINUX_6_18 & ~int(Init.PASSTHROUGH | Init.HAS_RESEND)
LINUX_5_4 = sum(1 << bit for bit in range(26))  # up to EXPLICIT_INVAL_DATA


def agree(request: bytes, may_passthrough: str = "") -> tuple[Negotiated, bytes]:
    return negotiate(request, may_passthrough=may_passthrough, pages_limit=256)


def test_a_new_kernel_passes_through_and_sends_again() -> None:
    values, _ = agree(init_request(45, LINUX_6_18))
    assert values.passthrough
    assert values.resend
    assert values.why_not == ""
    assert values.max_write == MAX_PAGES * 4096
    assert values.buffer_bytes == values.max_write + 4096


def test_the_reply_is_laid_out_as_the_kernel_reads_it() -> None:
    request = init_request(45, LINUX_6_18, max_readahead=1 << 30)
    values, reply = negotiate(request, may_passthrough="", pages_limit=16)
    golden = u32(16 + 64) + i32(0) + u64(2)
    golden += u32(7) + u32(41) + u32(1 << 30)  # major, minor, max_readahead
    golden += u32(values.flags & 0xFFFFFFFF) + u16(2816) + u16(256)  # max_background, congestion
    golden += u32(16 * 4096) + u32(1)  # max_write, time_gran
    golden += u16(16) + u16(0)  # max_pages, map_alignment
    golden += u32(values.flags >> 32) + u32(2)  # flags2, max_stack_depth
    golden += u16(0) + b"\0" * 22  # request_timeout, unused
    assert reply == golden


def test_no_writeback_cache_beside_passthrough() -> None:
    """The kernel drops passthrough silently with it, and every open fails."""
    values, _ = agree(init_request(45, LINUX_6_18))
    assert not values.flags & 1 << 16
    assert not values.flags & 1 << 3, "O_TRUNC comes as SETATTR, which is refused"
    assert not values.flags & 1 << 41, "no io_uring"


@pytest.mark.parametrize("kernel", [LINUX_6_18, LINUX_5_4])
def test_owners_are_mapped_only_where_the_kernel_checks_permissions(kernel: int) -> None:
    """The kernel refuses the whole reply otherwise."""
    request = init_request(45, kernel)
    values, _ = negotiate(request, may_passthrough="", pages_limit=256, default_permissions=True)
    assert bool(values.flags & 1 << 40) == (kernel == LINUX_6_18)
    values, _ = negotiate(request, may_passthrough="", pages_limit=256)
    assert not values.flags & 1 << 40


@pytest.mark.parametrize("why_not", ["switched off", "no CAP_SYS_ADMIN"])
def test_passthrough_that_may_not_be_used_is_not_asked_for(why_not: str) -> None:
    values, reply = agree(init_request(45, LINUX_6_18), why_not)
    assert not values.passthrough
    assert not values.flags & Init.PASSTHROUGH
    assert values.why_not == why_not
    assert reply[16 + 36 : 16 + 40] == u32(0), "max_stack_depth"
    assert values.resend


def test_a_kernel_without_passthrough_or_resend() -> None:
    values, _ = agree(init_request(38, LINUX_6_6))
    assert not values.passthrough
    assert not values.resend
    assert values.why_not == "the kernel has no FUSE passthrough (Linux 6.9 has)"
    assert values.minor == 38


def test_upper_flags_that_a_kernel_cannot_mean() -> None:
    """Without INIT_EXT what stands in `flags2` is nothing."""
    values, _ = agree(init_request(38, LINUX_6_18 & ~int(Init.INIT_EXT)))
    assert not values.passthrough
    assert not values.resend


def test_linux_5_4_with_its_short_request() -> None:
    body = u32(7) + u32(31) + u32(131072) + u32(LINUX_5_4)
    values, reply = agree(request(Op.INIT, body))
    assert values.minor == 31
    assert not values.passthrough
    assert values.max_pages == 128
    assert len(reply) == 16 + 64


def test_without_max_pages_a_request_has_32() -> None:
    values, _ = agree(init_request(38, LINUX_6_6 & ~int(Init.MAX_PAGES)))
    assert values.max_pages == 32
    assert values.max_write == 32 * 4096


@pytest.mark.parametrize(("limit", "pages"), [(256, 128), (16, 16), (65535, 128)])
def test_requests_are_as_big_as_the_machine_allows(limit: int, pages: int) -> None:
    request = init_request(45, LINUX_6_18)
    values, reply = negotiate(request, may_passthrough="", pages_limit=limit)
    assert values.max_pages == pages
    assert MAX_PAGES <= 1024
    assert reply[16 + 20 : 16 + 24] == u32(pages * 4096)
    assert values.buffer_bytes >= max(8192, pages * 4096 + 4096)


@pytest.mark.parametrize(("major", "minor"), [(7, 30), (6, 99), (7, 0)])
def test_kernels_that_are_too_old_are_named(major: int, minor: int) -> None:
    with pytest.raises(Unsupported, match=f"{major}.{minor} is too old") as caught:
        agree(init_request(minor, LINUX_6_18, major=major))
    assert "5.4" in caught.value.remedy


def test_what_is_no_init() -> None:
    with pytest.raises(Unsupported):
        agree(request(Op.GETATTR, b"\0" * 64))
    with pytest.raises(ProtocolError):
        agree(request(Op.INIT, b"\0" * 8))
    with pytest.raises(ProtocolError):
        agree(b"")


@given(st.integers(0, 2**64 - 1), st.integers(31, 60), st.integers(1, 70000))
def test_nothing_is_answered_that_was_not_offered(flags: int, minor: int, limit: int) -> None:
    values, reply = negotiate(init_request(minor, flags), may_passthrough="", pages_limit=limit)
    offered = flags if flags & Init.INIT_EXT else flags & 0xFFFFFFFF
    assert values.flags & ~offered == 0
    assert values.minor <= minor
    assert values.passthrough == (values.why_not == "") == bool(values.flags & Init.PASSTHROUGH)
    assert len(reply) == 80
    assert (values.flags >> 32 == 0) or values.flags & Init.INIT_EXT


def test_reads_ahead_leave_requests_for_names() -> None:
    """The kernel sends no more of them than the client may ask its server at once, which is less
    than the server takes of one client."""
    assert MAX_BACKGROUND + 256 <= connection.MAX_IN_FLIGHT
    assert connection.MAX_IN_FLIGHT + 1024 <= session.MAX_IN_FLIGHT, "cancelled ones end later"
