"""What goes over the control socket comes out unchanged; what is no note harms nobody."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefs.core.errors import ProtocolError
from cachefs.core.messages import Failure
from cachefs.fuse.kernel.negotiation import Negotiated
from cachefs.fuse.supervisor import wire as w

Pair = tuple[socket.socket, socket.socket]
NEGOTIATED = st.builds(
    Negotiated,
    minor=st.integers(0, 99),
    flags=st.integers(0, 2**64 - 1),
    max_write=st.integers(0, 2**32 - 1),
    max_pages=st.integers(0, 2**16 - 1),
    passthrough=st.booleans(),
    resend=st.booleans(),
    why_not=st.text(max_size=50),
)
FAILURE = st.builds(Failure, st.text(max_size=20), st.text(max_size=200))
NOTES: st.SearchStrategy[w.ControlMessage] = st.one_of(
    st.builds(w.Ready, st.text(max_size=200)),
    st.builds(w.Failed, FAILURE),
    st.builds(w.Serve, NEGOTIATED, st.booleans()),
    st.sampled_from([w.Serving(), w.Beat(), w.Retire(), w.Retired(), w.Ending(), w.Leaving()]),
    st.builds(w.Upgrade, st.text(max_size=200)),
    st.builds(w.Upgraded, st.integers(0, 2**31), st.none() | FAILURE),
)


def make_pair() -> Pair:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = make_pair()
    with left, right:
        yield left, right


@given(st.lists(NOTES, max_size=5))
def test_notes_come_as_they_were_sent(notes: list[w.ControlMessage]) -> None:
    left, right = make_pair()
    with left, right:
        for note in notes:
            w.send(left, note)
            assert w.receive(right) == (note, [])


@given(NEGOTIATED)
def test_what_init_agreed_on_is_handed_on(values: Negotiated) -> None:
    assert w.decode_negotiated(w.encode_negotiated(values)) == values


def test_descriptors_travel_with_a_note(pair: Pair) -> None:
    left, right = pair
    first, second = os.pipe()
    values = Negotiated(41, 1, 4096, 1, True, True)
    w.send(left, w.Serve(values, True), (first, second))
    note, fds = w.receive(right)
    assert note == w.Serve(values, True)
    assert len(fds) == 2
    assert not any(map(os.get_inheritable, fds))
    assert [os.fstat(fd).st_ino for fd in fds] == [os.fstat(fd).st_ino for fd in (first, second)]
    for fd in (first, second, *fds):
        os.close(fd)


@given(st.binary(min_size=1, max_size=200))
def test_garbage_is_refused(data: bytes) -> None:
    left, right = make_pair()
    with left, right:
        left.send(data)
        try:
            note, _ = w.receive(right)
        except ProtocolError:
            return
        assert isinstance(note, w.ControlMessage)


def test_descriptors_of_garbage_are_closed(pair: Pair) -> None:
    left, right = pair
    before = set(os.listdir("/proc/self/fd"))
    socket.send_fds(left, [b"\xc1"], [left.fileno()])
    with pytest.raises(ProtocolError):
        w.receive(right)
    assert set(os.listdir("/proc/self/fd")) == before


def test_notes_of_a_later_version(pair: Pair) -> None:
    """Fields that are not known are ignored; an unknown kind is told apart from the end."""
    left, right = pair
    left.send(msgspec.msgpack.encode({"type": "Ready", "warning": "w", "later": [1]}))
    assert w.receive(right) == (w.Ready("w"), [])
    left.send(msgspec.msgpack.encode({"type": "Later"}))
    with pytest.raises(ProtocolError):
        w.receive(right)
    with pytest.raises(ProtocolError):
        w.decode_negotiated(b"\xc1")


def test_the_end_is_no_note(pair: Pair) -> None:
    left, right = pair
    left.close()
    assert w.receive(right) == (None, [])


def test_an_end_before_everything_was_read(pair: Pair) -> None:
    """What it said before it ended is heard all the same."""
    left, right = pair
    w.send(right, w.Beat())
    w.send(left, w.Leaving())
    left.close()
    assert w.receive(right) == (w.Leaving(), [])
    assert w.receive(right) == (None, [])


def test_sending_never_waits(pair: Pair) -> None:
    left, _ = pair

    def flood() -> None:
        for _ in range(1 << 20):
            w.send(left, w.Beat())

    with pytest.raises(BlockingIOError):
        flood()
