"""One open file against a scripted session: doubts, connections, what is closed and released."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from cachefs.core import messages as m
from cachefs.core.errors import ProtocolError, Stale
from cachefs.core.model import Inode, Kind, NamespaceId
from cachefs.core.owned_fd import own
from cachefs.library.node_session import Take
from cachefs.library.open_file import Doubts, OpenFile
from cachefs.library.shared_socket import Reply, SocketLost

DATA = bytes(range(256)) * 16
NAMESPACE = NamespaceId(b"n" * 16)


class ScriptedSession:
    """A session whose replies the test writes; it keeps the requests and the posts."""

    def __init__(self) -> None:
        self.epoch = 1
        self.generation = 0
        self.lock = threading.Lock()
        self.replies: list[tuple[m.Message, int | None] | SocketLost] = []
        self.asked: list[m.Message] = []
        self.posted: list[m.Message] = []

    def request(self, body: m.Message, take: Take[Any]) -> Any:
        self.asked.append(body)
        reply = self.replies.pop(0)
        if isinstance(reply, SocketLost):
            self.epoch += 1
            raise reply
        return take(self.reply(*reply), self.epoch)

    def request_once(self, body: m.Message, take: Take[Any], *, epoch: int = 0) -> Any:
        if epoch not in (0, self.epoch):
            raise SocketLost("another connection")
        return self.request(body, take)

    def reply(self, body: m.Message, fd: int | None = None) -> Reply:
        """A reply; the test asserts what was taken of it."""
        handle = body.handle if isinstance(body, m.Opened) else 0
        self.last = Reply(1, body, [] if fd is None else [fd], handle)
        return self.last

    def post(self, body: m.Message, epoch: int = 0) -> None:
        if epoch in (0, self.epoch):
            self.posted.append(body)


@pytest.fixture
def session() -> ScriptedSession:
    return ScriptedSession()


@pytest.fixture
def doubts() -> Doubts:
    return Doubts()


@pytest.fixture
def file(session: ScriptedSession, doubts: Doubts) -> OpenFile:
    inode = Inode(5, Kind.FILE, len(DATA), nonce=7)
    made: Any = session
    return OpenFile(made, NAMESPACE, inode, doubts, lambda _: None)


def fd_of(tmp_path: Path, data: bytes, name: str = "file") -> int:
    (tmp_path / name).write_bytes(data)
    return os.open(tmp_path / name, os.O_RDONLY)


def is_closed(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return True
    return False


def test_a_complete_file_sends_nothing(
    file: OpenFile, session: ScriptedSession, tmp_path: Path
) -> None:
    fd = fd_of(tmp_path, DATA)
    file.use_published(own(fd), 0)
    buffer = bytearray(20)
    assert file.pread(10, 5) == DATA[5:15]
    assert file.pread_into(buffer, len(DATA) - 7) == 7
    assert (buffer[:7], file.pread(5, len(DATA))) == (DATA[-7:], b"")
    file.close()
    file.close()
    assert is_closed(fd)
    assert (session.asked, session.posted) == ([], [])


def test_a_tier_that_lost_data_is_not_read(
    file: OpenFile, session: ScriptedSession, doubts: Doubts, tmp_path: Path
) -> None:
    """The descriptor has wrong bytes from then on; a doubt about another tier changes nothing."""
    file.use_published(own(fd_of(tmp_path, b"?" * len(DATA))), 1)
    doubts.add(0)
    assert file.pread(3, 0) == b"???"
    assert session.asked == []
    doubts.add(1)
    session.replies = [
        (m.Opened(9, len(DATA), False, False), None),
        (m.Ensured(0, len(DATA), segment=True), fd_of(tmp_path, DATA, "segment")),
    ]
    assert file.pread(3, 0) == DATA[:3]
    opened, ensure = session.asked
    assert isinstance(opened, m.Open)
    assert isinstance(ensure, m.Ensure)
    assert (opened.past_tier, ensure.past_tier) == (True, True)
    file.close()
    assert session.posted == [m.Release(9)]


def test_a_handle_is_used_on_its_own_connection_only(
    file: OpenFile, session: ScriptedSession, tmp_path: Path
) -> None:
    """After a loss the file is opened again: the next server's handle 3 may be another file."""
    file.use_opened(session.reply(m.Opened(3, len(DATA), False, True), fd_of(tmp_path, DATA)), 1)
    session.epoch = 2
    session.replies = [
        (m.Opened(4, len(DATA), False, True), fd_of(tmp_path, DATA, "again")),
        SocketLost("gone"),
        (m.Opened(5, len(DATA), False, True), fd_of(tmp_path, DATA, "third")),
        (m.Ensured(0, 100), None),
    ]
    assert file.pread(50, 10) == DATA[10:60]
    assert [type(one).__name__ for one in session.asked] == ["Open", "Ensure", "Open", "Ensure"]
    assert [one.handle for one in session.asked if isinstance(one, m.Ensure)] == [4, 5]
    file.close()
    assert session.posted == [m.Release(5)]


def test_another_size_is_another_file(
    file: OpenFile, session: ScriptedSession, tmp_path: Path
) -> None:
    fd = fd_of(tmp_path, DATA)
    with pytest.raises(Stale):
        file.use_opened(session.reply(m.Opened(3, 10, False, True), fd), 1)
    assert (session.last.fds, session.last.handle) == ([fd], 3), "they end with the exchange"
    os.close(fd)


def test_bytes_in_the_reply(file: OpenFile, session: ScriptedSession) -> None:
    file.use_opened(session.reply(m.Opened(3, len(DATA), False, False), None), 1)
    session.replies = [
        (m.Ensured(0, 40, data=DATA[:40]), None),
        (m.Ensured(40, 80, data=DATA[40:80]), None),
    ]
    assert file.pread(60, 10) == DATA[10:70]
    file.close()


def test_a_grant_without_bytes_is_an_error(file: OpenFile, session: ScriptedSession) -> None:
    file.use_opened(session.reply(m.Opened(3, len(DATA), False, False), None), 1)
    session.replies = [(m.Ensured(0, 40), None)]
    with pytest.raises(ProtocolError):
        file.pread(10, 0)
    file.close()


def test_a_file_that_becomes_complete(
    file: OpenFile, session: ScriptedSession, tmp_path: Path
) -> None:
    file.use_opened(session.reply(m.Opened(3, len(DATA), False, True), fd_of(tmp_path, DATA)), 1)
    assert file.complete_fd < 0
    session.replies = [(m.Ensured(0, len(DATA), complete=True), None)]
    assert file.pread(len(DATA), 0) == DATA
    assert file.complete_fd >= 0
    assert session.posted == [m.Release(3)]
    file.close()


def test_idle_segments_are_given_back(
    file: OpenFile, session: ScriptedSession, tmp_path: Path
) -> None:
    fd = fd_of(tmp_path, DATA)
    file.use_opened(session.reply(m.Opened(3, len(DATA), False, False), None), 1)
    session.replies = [(m.Ensured(0, len(DATA), segment=True), fd)]
    assert file.pread(10, 0) == DATA[:10]
    assert not file.give_back_if_idle(), "it was read a moment ago"
    assert file.give_back_if_idle()
    assert is_closed(fd)
    file.close()
