"""A node's server of a few files, each sent in another way, in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import selectors
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from cachefs.client.sockets import connect_socket
from cachefs.core import messages as m
from cachefs.core.model import ContentId, Inode, Kind, NamespaceId, UfsSpec
from cachefs.fuse.dentries import encode_inode

NAMESPACE: Final = NamespaceId(b"n" * 16)
ROOT: Final = Inode(1, Kind.DIRECTORY)
SIZE: Final = 3000
VALID_S: Final = 3600.0
# Published; complete; partial with a cache file; in segments; in replies
NAMES: Final = ("published", "complete", "partial", "segments", "bytes")


class ScriptedDialer:
    """Connects to the server."""

    attach = m.Attach(UfsSpec("file:///scripted"))

    def __init__(self, path: str) -> None:
        self._path = path

    def check(self) -> None:
        """Does nothing."""

    def dial(self) -> socket.socket:
        return connect_socket(self._path)


@contextmanager
def scripted_node(folder: Path) -> Iterator[ScriptedDialer]:
    """Runs the server. Its reply to Status names the files that the session has open."""
    for name in NAMES:
        (folder / name).write_bytes(body_of(name))
    (folder / "pub").mkdir()
    content = ContentId.name_of(NAMESPACE, inode_of("published"))
    os.link(folder / "published", folder / "pub" / content)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(folder / "server.sock"))
        listener.listen(64)
        fork = multiprocessing.get_context("fork")
        process = fork.Process(target=_serve, args=(listener, folder), daemon=True)
        process.start()
    try:
        yield ScriptedDialer(str(folder / "server.sock"))
    finally:
        process.kill()
        process.join()


def _serve(listener: socket.socket, folder: Path) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.data is None:
                    session = _Session(listener.accept()[0], folder)
                    selector.register(session.sock, selectors.EVENT_READ, session)
                elif not key.data.answer():
                    selector.unregister(key.fileobj)
                    key.data.sock.close()


class _Session:
    def __init__(self, sock: socket.socket, folder: Path) -> None:
        self.sock = sock
        self._fds = {name: os.open(folder / name, os.O_RDONLY) for name in (*NAMES, "pub")}
        self._opened: dict[int, str] = {}
        self._last_handle = 0

    def answer(self) -> bool:
        """Answers the next request. Returns False at the end."""
        try:
            data = self.sock.recv(m.MAX_FRAME_BYTES)
            if not data:
                return False
            frame = m.decode(data)
            if isinstance(frame.body, m.Open):  # events come with replies
                self._send(0, m.Invalidate(NAMESPACE, 1, [(1, b"other")]))
                self._send(0, m.PublishedDirectory(1, True), "pub")
            self._reply(frame.id, frame.body)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def _reply(self, id: int, body: Any) -> None:
        match body:
            case m.Hello():
                self._send(id, m.Welcome(1, published_dir=True), "pub")
            case m.Attach():
                self._send(id, m.Attached(NAMESPACE, ROOT))
                self._send(0, m.PublishedDirectory(1, True), "pub")
            case m.Lookup():
                name = os.fsdecode(body.name)
                self._send(id, m.Found(inode_of(name) if name in NAMES else None, VALID_S))
            case m.ListDir():
                entries = [
                    m.Dentry(os.fsencode(name), msgspec.Raw(encode_inode(inode_of(name))))
                    for name in sorted(NAMES)
                ]
                self._send(id, m.Listing(entries, b"", VALID_S))
            case m.Open():
                self._open(id, NAMES[body.ino - 10])
            case m.Ensure():
                self._ensure(id, body)
            case m.Release():
                self._opened.pop(body.handle, None)
            case m.Status():
                self._send(id, m.StatusReply({"opened": sorted(self._opened.values())}))
            case m.Cancel() | m.Used():
                pass
            case _:
                self._send(id, m.Done())

    def _open(self, id: int, name: str) -> None:
        if name == "complete":
            return self._send(id, m.Opened(0, SIZE, True, True), name)
        self._last_handle += 1
        self._opened[self._last_handle] = name
        has_fd = name == "partial"
        opened = m.Opened(self._last_handle, SIZE, False, has_fd)
        self._send(id, opened, name if has_fd else "")

    def _ensure(self, id: int, body: m.Ensure) -> None:
        name = self._opened[body.handle]
        start, end = body.offset, min(SIZE, body.offset + max(body.size, SIZE // 2))
        if name == "segments":
            return self._send(id, m.Ensured(start, end, 0, True), name)
        data = body_of(name)[start:end] if name == "bytes" else b""
        self._send(id, m.Ensured(start, end, data=data))

    def _send(self, id: int, body: m.Message, descriptor: str = "") -> None:
        fds = [self._fds[descriptor]] if descriptor else []
        socket.send_fds(self.sock, [m.encode(id, body)], fds)


def inode_of(name: str) -> Inode:
    return Inode(10 + NAMES.index(name), Kind.FILE, SIZE, nonce=7)


def body_of(name: str) -> bytes:
    return (name.encode() * SIZE)[:SIZE]
