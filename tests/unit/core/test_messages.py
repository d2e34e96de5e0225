"""The wire: what is encoded comes back, newer and older peers understand each other."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefs.core import cluster, errors, messages
from cachefs.core.model import Inode, Kind, NamespaceId

NAMESPACE = NamespaceId(b"n" * 16)


def test_a_listing_carries_stored_records_untouched() -> None:
    inode = Inode(7, Kind.FILE, 5)
    raw = msgspec.Raw(msgspec.msgpack.encode([*msgspec.structs.astuple(inode), 99.0]))
    frame = messages.decode(
        messages.encode(3, messages.Listing([messages.Dentry(b"\xff", raw)], b"", 1.5))
    )
    assert frame.id == 3
    assert isinstance(frame.body, messages.Listing)
    dentry = frame.body.entries[0]
    assert dentry.name == b"\xff"
    assert msgspec.msgpack.decode(dentry.inode, type=Inode) == inode


def test_unknown_fields_of_a_newer_peer_are_ignored() -> None:
    newer = {"type": "Release", "handle": 4, "colour": "green"}
    frame = messages.decode(msgspec.msgpack.encode((9, newer, "more")))
    assert frame == messages.Frame(9, messages.Release(4))


def test_missing_fields_of_an_older_peer_have_defaults() -> None:
    frame = messages.decode(msgspec.msgpack.encode((1, {"type": "Hello", "role": "cli", "pid": 5})))
    assert frame.body == messages.Hello("cli", 5)


@given(st.binary(max_size=200))
def test_what_is_no_frame_is_a_protocol_error(data: bytes) -> None:
    try:
        frame = messages.decode(data)
    except errors.ProtocolError:
        return
    assert isinstance(frame, messages.Frame)


def test_what_is_nested_too_deeply_is_no_message() -> None:
    """A stranger may send it to a master: it is no fault of the server."""
    deep = b"\x91" * 100_000
    unknown = b"\x82\xa4type\xa8Greeting\xa1x" + deep
    for decode in (cluster.decode_call, cluster.decode_answer, messages.decode):
        for data in (deep, unknown, b"\x92\x01" + unknown):
            with pytest.raises(errors.ProtocolError):
                decode(data)


@pytest.mark.parametrize("cls", errors.BY_CODE.values())
def test_every_error_crosses_the_wire(cls: type[errors.CacheFSError]) -> None:
    error = cls("cause", remedy="remedy", path="p/q", request_id="R1")
    back = messages.error_of(messages.failure_of(error))
    assert type(back) is cls
    assert back.one_line() == error.one_line() == "p/q: cause (request id R1); remedy"


def test_error_codes_are_unique() -> None:
    """Of this module's classes; other modules may refine one, and cross the wire as its base."""
    found = errors._tree(errors.CacheFSError)
    classes = [cls for cls in found if cls.__module__ == errors.__name__]
    assert len(errors.BY_CODE) == len(set(classes))


def test_an_error_of_a_newer_peer_is_an_io_error() -> None:
    back = messages.error_of(messages.Failure("invented-later", "cause"))
    assert type(back) is errors.CacheFSError


@pytest.mark.parametrize(
    "body",
    [
        messages.Attach(messages.UfsSpec("s3://b", {"profile": "p"})),
        messages.Invalidate(NAMESPACE, 5, [(1, b"a")]),
        messages.Opened(1, 2, True, False),
        messages.Found(None, 0.0),
        messages.Cover(3, NAMESPACE, 9, b"train/\xff"),
        messages.CoverChanged(3, covered=False, reason="busy"),
        messages.ViewTable([messages.ViewStatus(3, b"train", 12_000, 5, "covered", 1.5, 2)]),
    ],
)
def test_bodies_come_back(body: messages.Message) -> None:
    assert messages.decode(messages.encode(2, body)).body == body
