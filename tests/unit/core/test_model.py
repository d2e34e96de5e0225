"""Identity: content ids, nodeids, fingerprints."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefs.core.model import (
    MAX_INCARNATION,
    MAX_INO,
    ROOT_INO,
    ContentId,
    Fingerprint,
    Inode,
    Kind,
    NamespaceId,
    UfsSpec,
    nodeid,
    split_nodeid,
)

content_ids = st.builds(
    ContentId,
    st.binary(min_size=16, max_size=16).map(NamespaceId),
    st.integers(1, MAX_INO),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
)


@given(content_ids)
def test_a_content_name_names_one_content(content: ContentId) -> None:
    assert len(content.name) == 72
    assert ContentId.parse(content.name) == content


@given(content_ids, content_ids)
def test_two_contents_never_share_a_name(one: ContentId, other: ContentId) -> None:
    assert (one.name == other.name) == (one == other)


@pytest.mark.parametrize("name", ["", "zz", "00" * 35, "00" * 37])
def test_what_is_no_content_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError):
        ContentId.parse(name)


@given(st.integers(1, MAX_INO), st.integers(0, MAX_INCARNATION))
def test_nodeid_keeps_both_parts(ino: int, incarnation: int) -> None:
    value = nodeid(ino, incarnation)
    assert 0 < value < 1 << 64
    assert split_nodeid(value) == (ino, incarnation)


def test_the_root_is_what_the_kernel_calls_it() -> None:
    assert nodeid(ROOT_INO) == 1


@pytest.mark.parametrize(("ino", "incarnation"), [(0, 0), (MAX_INO + 1, 0), (5, 65536), (5, -1)])
def test_nodeid_out_of_range(ino: int, incarnation: int) -> None:
    with pytest.raises(ValueError):
        nodeid(ino, incarnation)


def test_a_directory_is_its_kind_alone() -> None:
    one = Inode(5, Kind.DIRECTORY, mtime_ns=1)
    other = Inode(6, Kind.DIRECTORY, mtime_ns=2, size=3)
    assert one.fingerprint == other.fingerprint == Fingerprint(Kind.DIRECTORY)


def test_a_record_with_more_fields_is_still_an_inode() -> None:
    """Stored records append fields; older readers ignore them (formats may grow at the end)."""
    inode = Inode(5, Kind.FILE, 10, 11, "e", 1, 2, 0o644, 3, 4)
    longer = msgspec.msgpack.encode([*msgspec.structs.astuple(inode), 123.5])
    assert msgspec.msgpack.decode(longer, type=Inode) == inode


def test_the_same_bucket_behind_two_endpoints_is_two_sources() -> None:
    plain = UfsSpec("s3://b/p")
    assert UfsSpec("s3://b/p/").key == plain.key
    assert UfsSpec("s3://b/p", {"endpoint_url": "http://127.0.0.1:1"}).key != plain.key
    assert UfsSpec("s3://b/p", {"profile": "x"}).key == plain.key
