"""The tier's format: golden records, headers, and the arithmetic of epochs."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefs.core.errors import BadConfig
from cachefs.core.model import PAGE_BYTES, ContentId, NamespaceId
from worker.store.records import (
    BLOCK_PAGES,
    HELD_READ,
    KEY_BYTES,
    MOST_RANGES,
    NAME_CHARS,
    BlockRecord,
    FileRecord,
    Header,
    IndexMeta,
    block_key,
    block_pages,
    decode_file,
    decode_header,
    decode_meta,
    encode_file,
    encode_header,
    encode_meta,
    failed,
    next_start,
    synced,
)
from worker.store.view_records import (
    NameRecord,
    ViewRecord,
    decode_name,
    decode_view,
    directory_key,
    encode_name,
    encode_view,
    split_name_key,
)

# Written by format 1. They must decode for as long as format 1 is supported.
GOLDEN_FILE = bytes.fromhex(
    "97ce003400ada461626364 05 ce00340000 c3 ce65f00000 00".replace(" ", "")
)
GOLDEN_META = bytes.fromhex(
    "84a6666f726d617401a474696572c41074747474747474747474747474747474"
    "a566696c657303af616c6c6f63617465645f6279746573cd3000"
)
GOLDEN_BLOCK = bytes.fromhex("0500000000000000010000000000000000fedcba9876543210")
GOLDEN_HEADER = bytes.fromhex(
    "4346535449455200" "00000001" + "74" * 16 + "62" * 16 + "0000000000000007" "0000000000000005"
    "00000001" "0000000000000001" "0000000000000003" "5b9c24eba073d2bb"
)  # fmt: skip

GOLDEN_HEADER_OF_VIEWS = bytes.fromhex(
    "4346535449455200" "00000002" + "74" * 16 + "62" * 16 + "0000000000000007" "0000000000000005"
    "00000001" "0000000000000001" "0000000000000003" "05e0141500944248"
)  # fmt: skip
EARLIER_VIEW = bytes.fromhex(
    "9bc4106e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6ec407747261696e2fff94cd03e864cd01a4cd01edc3"
    "4d050ccd100003c202"
)
LATER_VIEW = b"\x9c" + EARLIER_VIEW[1:] + bytes.fromhex("a46175746f")
GOLDEN_VIEW = b"\x9d" + LATER_VIEW[1:] + bytes.fromhex("c3")
GOLDEN_NAME = bytes.fromhex(
    "990901c4246b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b"
    "6bcd01a4cd03e864ffcd1000c400"
)


class _Earlier(msgspec.Struct, frozen=True, array_like=True):
    """A record as the first version that had it knew it."""

    size: int
    etag: str
    epoch: int
    allocated_bytes: int
    complete: bool
    last_use_s: int
    flags: int = 0


def test_a_record_of_today_can_be_read_by_an_earlier_version() -> None:
    record = FileRecord(5, "abcd", 1, 4096, True, 7, HELD_READ, 8, 9)
    earlier = msgspec.msgpack.decode(encode_file(record), type=_Earlier)
    assert earlier == _Earlier(5, "abcd", 1, 4096, True, 7, HELD_READ)


def test_records_of_format_1_decode() -> None:
    record = decode_file(GOLDEN_FILE)
    assert record == FileRecord(3_408_045, "abcd", 5, 3_407_872, True, 1_710_227_456, 0)
    # It says now when it was filled, and how long it is held.
    assert encode_file(record) == b"\x99" + GOLDEN_FILE[1:] + b"\0\0"
    assert decode_file(b"\x98" + GOLDEN_FILE[1:] + b"\x07") == msgspec.structs.replace(
        record, filled_s=7
    )
    meta = decode_meta(GOLDEN_META)
    assert meta == IndexMeta(1, b"t" * 16, 3, 12288)
    assert encode_meta(meta) == GOLDEN_META
    block = BlockRecord(3, GOLDEN_BLOCK)
    assert (block.bits, block.checksum(0), block.checksum(2)) == (0b101, 1, 0xFEDCBA9876543210)
    header = decode_header(GOLDEN_HEADER)
    assert header == Header(b"t" * 16, b"b" * 16, 7, 5, ((1, 3),))
    assert encode_header(header) == GOLDEN_HEADER


def test_a_newer_record_with_more_fields_decodes() -> None:
    import msgspec

    data = msgspec.msgpack.encode([1, "", 1, 4096, True, 5, 0, 6, 8, "new", 7])
    assert decode_file(data) == FileRecord(1, "", 1, 4096, True, 5, 0, 6, 8)


def test_keys_are_content_ids() -> None:
    content = ContentId(NamespaceId(b"n" * 16), 1, 2, 3)
    assert len(content.name) == NAME_CHARS
    key = bytes.fromhex(content.name)
    assert len(key) == KEY_BYTES
    assert block_key(key, 77) == key + (77).to_bytes(4)


@given(st.integers(1, 3 * BLOCK_PAGES), st.data())
def test_block_records_keep_what_was_put(count: int, data: st.DataObject) -> None:
    size = count * PAGE_BYTES - 1
    number = data.draw(st.integers(0, (count - 1) // BLOCK_PAGES))
    pages = block_pages(size, number)
    sums = data.draw(st.dictionaries(st.integers(0, pages - 1), st.integers(0, (1 << 64) - 1)))
    block = BlockRecord(pages)
    for page, checksum in sums.items():
        block.put(page, checksum)
    gone = data.draw(st.sets(st.sampled_from(sorted(sums)))) if sums else set()
    for page in gone:
        block.clear(page)
    again = BlockRecord(pages, bytes(block.data))
    left = {page: checksum for page, checksum in sums.items() if page not in gone}
    assert again.bits == sum(1 << page for page in left)
    assert all(again.checksum(page) == checksum for page, checksum in left.items())
    with pytest.raises(ValueError):
        BlockRecord(pages, bytes(block.data) + b"x")


@given(st.binary(max_size=200))
def test_junk_is_no_header(data: bytes) -> None:
    assert decode_header(data) is None
    flipped = bytearray(GOLDEN_HEADER)
    flipped[30] ^= 1
    assert decode_header(bytes(flipped)) is None
    assert decode_header(GOLDEN_HEADER[:-1]) is None


def test_a_newer_format_is_not_touched() -> None:
    data = bytearray(GOLDEN_HEADER)
    data[11] = 3
    with pytest.raises(BadConfig, match="format 3"):
        decode_header(bytes(data))


def test_the_header_of_a_tier_with_views_is_of_format_2() -> None:
    """So an earlier version, which would evict files of views, refuses the tier."""
    header = Header(b"t" * 16, b"b" * 16, 7, 5, ((1, 3),), views=True)
    assert encode_header(header) == GOLDEN_HEADER_OF_VIEWS
    assert decode_header(GOLDEN_HEADER_OF_VIEWS) == header
    for later in (next_start(header, b"c" * 16), synced(header, 9), failed(header, 9)):
        assert later.views


def test_records_of_views_decode() -> None:
    view = ViewRecord(
        b"n" * 16, b"train/\xff", (1000, 100, 0o644, 0o755), True, 77, 5, 12, 4096, 3, False, 2,
        "auto", True,
    )  # fmt: skip
    assert decode_view(EARLIER_VIEW) == msgspec.structs.replace(view, policy="", unsure=False)
    assert decode_view(LATER_VIEW) == msgspec.structs.replace(view, unsure=False)
    assert decode_view(GOLDEN_VIEW) == view
    assert encode_view(view) == GOLDEN_VIEW
    name = NameRecord(9, 1, b"k" * 36, 0o644, 1000, 100, -1, 4096)
    assert decode_name(GOLDEN_NAME) == name
    assert encode_name(name) == GOLDEN_NAME
    key = directory_key(7, 2) + b"c/"
    assert key == bytes.fromhex("00000000000000070000000000000002") + b"c/"
    assert split_name_key(key) == (7, 2, b"c/")


@given(st.lists(st.sampled_from(["record", "sync", "half sync", "restart", "crash"]), max_size=80))
def test_after_a_crash_of_the_machine_only_synced_epochs_are_trusted(steps: list[str]) -> None:
    """A model: every recorded epoch is synced, doubtful, or of this boot. None may be trusted that
    is doubtful, none of this boot may be distrusted."""
    boot = 0
    header = next_start(Header(b"t" * 16, bytes(16)), bytes(16))
    epoch = header.epoch
    safe: set[int] = set()
    fresh: set[int] = set()
    doubtful: set[int] = set()
    for step in steps:
        if step == "record":
            fresh.add(epoch)
        elif step == "sync":
            before, epoch = epoch, epoch + 1
            header = synced(header, before)
            safe |= {e for e in fresh if e <= before}
            fresh -= safe
        elif step == "half sync":
            epoch += 1 if epoch == header.epoch else 0  # the header was not written
        else:
            if step == "crash":
                boot += 1
                doubtful |= fresh
                fresh = set()
            header = next_start(header, boot.to_bytes(16, "big"))
            assert header.epoch > max({0} | safe | fresh | doubtful)
            epoch = header.epoch
        assert decode_header(encode_header(header)) == header
        assert not any(header.trusts(e) for e in doubtful)
        assert all(header.trusts(e) for e in fresh)
        if boot < MOST_RANGES:
            assert all(header.trusts(e) for e in safe)
