"""The bytes of the store: golden values, so that a change of format is a decision."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefs.core.errors import BadConfig
from cachefs.core.model import MAX_INO, Inode, Kind
from master.state.records import (
    FORMAT,
    Stored,
    decode_dentry,
    decode_meta,
    dentry_key,
    encode_dentry,
    name_of,
    split_dentry_key,
)
from master.store.base import MAX_KEY_BYTES, Table


def test_the_format_is_the_one_that_older_stores_have() -> None:
    inode = Inode(10, Kind.FILE, 3, 2_000_000_000_000_000_000, "abc", 0, 9, 0o644, 1, 1)
    assert FORMAT == 1
    assert [table.name for table in Table] == [
        "META",
        "DENTRIES",
        "PARENTS",
        "DIRECTORIES",
        "EVENTS",
        "MOUNTS",
        "ORPHANS",
        "MEMBERS",
        "HELD",
        "POLICIES",
        "JOBS",
        "JOB_PATHS",
        "JOB_FAILURES",
        "UNCHECKED",
        "BACKGROUND",
    ]
    assert encode_dentry(inode, 1.5).hex() == (
        "9b0a0103cf1bc16d674ec80000a36162630009cd01a40101c4003ff8000000000000"
    )
    assert dentry_key(10, b"name/").hex() == "000000000000000a6e616d652f"


inodes = st.builds(
    Inode,
    st.integers(1, MAX_INO),
    st.sampled_from(Kind),
    st.integers(0, 1 << 60),
    st.integers(-(1 << 62), 1 << 62),
    st.text(max_size=40),
    st.integers(0, 1 << 32),
    st.integers(0, (1 << 64) - 1),
)


@given(inodes, st.floats(0, 1e12))
def test_dentries_come_back(inode: Inode, checked_at: float) -> None:
    assert decode_dentry(encode_dentry(inode, checked_at)) == Stored(inode, checked_at)


@given(st.integers(0, MAX_INO), st.binary(min_size=1, max_size=255), st.booleans())
def test_keys_come_back_and_fit(parent: int, name: bytes, is_directory: bool) -> None:
    name = name.replace(b"/", b"_")
    order_key = name + b"/" if is_directory else name
    key = dentry_key(parent, order_key)
    assert split_dentry_key(key) == (parent, order_key)
    assert name_of(order_key) == name
    assert len(key) <= MAX_KEY_BYTES


@pytest.mark.parametrize("value", [b"", b"\xc1", b"\x93\x01\x02\x03"])
def test_what_is_no_meta_record_is_one_typed_error(value: bytes) -> None:
    with pytest.raises(BadConfig) as caught:
        decode_meta(value)
    assert caught.value.remedy
