"""A node's server for tests: a tree in memory, published files in a real directory, every request
on record, answers that can be scripted or held back. Threads, so that it serves any client."""

from __future__ import annotations

import array
import bisect
import contextlib
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from cachefs.core import messages as m
from cachefs.core.errors import CacheFSError, NotFound, Stale
from cachefs.core.model import ROOT_INO, ContentId, Inode, Kind, NamespaceId

MTIME_NS = 1_700_000_000_500_000_000
NAMESPACE = NamespaceId(b"fake namespace!!")
Answer = tuple[m.Message, int | None]
Asked = TypeVar("Asked", bound=m.Message)
Script = Callable[[m.Message], Answer]
_encode = msgspec.msgpack.Encoder().encode
_NO_ANSWER = (m.Release, m.Used, m.Cancel, m.CoverChanged)


def descriptors() -> set[str]:
    """This process's descriptors of files and directories."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("/"):
                found.add(name)
    return found


def assert_no_more_descriptors(before: set[str], limit_s: float = 20.0) -> None:
    """Threads of a fake node may still be closing what they sent."""
    pause = threading.Event()
    deadline = time.monotonic() + limit_s
    while not descriptors() <= before:
        assert time.monotonic() < deadline, f"left open: {descriptors() - before}"
        pause.wait(0.005)


class FakeNode:
    """Owns a directory on tmpfs: on a disk, any mount or unmount on the machine can make an open of
    a published file go to the server. Use as a context manager: it closes every socket at its end.
    """

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="cachefs-test-", dir="/dev/shm")
        self.pub = Path(self._directory.name, "pub")
        self.cache = Path(self._directory.name, "cache")
        self.pub.mkdir()
        self.cache.mkdir()
        self.valid_for_s = 60.0
        self.keeps_complete = True  # as servers did that know no `complete_needs_no_release`
        self.inodes: dict[int, Inode] = {ROOT_INO: Inode(ROOT_INO, Kind.DIRECTORY, nonce=1)}
        self.children: dict[int, list[tuple[bytes, bytes, int]]] = {ROOT_INO: []}
        self.contents: dict[int, bytes] = {}
        self.requests: list[m.Message] = []
        self.open_handles: dict[int, int] = {}  # handle -> ino
        self.scripts: dict[type[m.Message], Script] = {}
        self.gates: dict[type[m.Message], threading.Event] = {}
        self.changed = threading.Condition()
        self._last_ino = ROOT_INO
        self._last_handle = 0
        self._sessions: list[socket.socket] = []
        self._listener: socket.socket | None = None
        self._lock = threading.RLock()

    # ---- the tree ----

    def add_dir(self, path: str) -> int:
        parent, _, name = path.rpartition("/")
        return self._add(parent, name, Kind.DIRECTORY)

    def add_link(self, path: str, target: bytes) -> int:
        parent, _, name = path.rpartition("/")
        return self._add(parent, name, Kind.SYMLINK, size=len(target), target=target)

    def add_file(
        self, path: str, data: bytes, *, published: bool = True, mtime_ns: int = MTIME_NS
    ) -> int:
        parent, _, name = path.rpartition("/")
        ino = self._add(parent, name, Kind.FILE, size=len(data), mtime_ns=mtime_ns)
        self.contents[ino] = data
        self.write_cache_file(ino, data)
        if published:
            self.publish(ino)
        return ino

    def add_sparse(self, path: str, size: int, parts: dict[int, bytes]) -> int:
        """A published file of `size` bytes, zeros but for `parts`, which stand at their offsets."""
        parent, _, name = path.rpartition("/")
        ino = self._add(parent, name, Kind.FILE, size=size, mtime_ns=MTIME_NS)
        with (self.cache / self.content_name(ino)).open("wb") as file:
            file.truncate(size)
            for offset, data in parts.items():
                os.pwrite(file.fileno(), data, offset)
        self.publish(ino)
        return ino

    def remove(self, path: str) -> None:
        ino = self.find(path)
        parent = self.find(path.rpartition("/")[0])
        with self._lock:
            self.children[parent] = [row for row in self.children[parent] if row[2] != ino]
            del self.inodes[ino]

    def give_again(self, ino: int, data: bytes) -> None:
        """The ino is another file from now on: the server's store is an earlier one."""
        with self._lock:
            old = self.inodes[ino]
            self.inodes[ino] = msgspec.structs.replace(old, nonce=old.nonce + 1, size=len(data))
            self.contents[ino] = data
            self.write_cache_file(ino, data)

    def rename(self, path: str, to: str) -> None:
        """Gives an entry another name in its directory."""
        ino, name = self.find(path), os.fsencode(to.rpartition("/")[2])
        rows = self.children[self.find(path.rpartition("/")[0])]
        with self._lock:
            key = name + b"/" if self.inodes[ino].kind is Kind.DIRECTORY else name
            rows[:] = sorted([*(row for row in rows if row[2] != ino), (key, name, ino)])

    def publish(self, ino: int) -> None:
        name = self.content_name(ino)
        os.link(self.cache / name, self.pub / name)

    def unpublish(self, ino: int) -> None:
        (self.pub / self.content_name(ino)).unlink()

    def content_name(self, ino: int) -> str:
        return ContentId.of(NAMESPACE, self.inodes[ino]).name

    def write_cache_file(self, ino: int, data: bytes) -> None:
        (self.cache / self.content_name(ino)).write_bytes(data)

    def open_cache_file(self, ino: int) -> int:
        return os.open(self.cache / self.content_name(ino), os.O_RDONLY)

    def find(self, path: str) -> int:
        ino = ROOT_INO
        for part in filter(None, path.split("/")):
            ino = next(row[2] for row in self.children[ino] if row[1] == os.fsencode(part))
        return ino

    def _add(self, parent: str, name: str, kind: Kind, **fields: object) -> int:
        with self._lock:
            self._last_ino += 1
            ino = self._last_ino
            self.inodes[ino] = Inode(ino, kind, nonce=ino * 7919, **fields)  # type: ignore[arg-type]
            raw = os.fsencode(name)
            key = raw + b"/" if kind is Kind.DIRECTORY else raw
            bisect.insort(self.children[self.find(parent)], (key, raw, ino))
            if kind is Kind.DIRECTORY:
                self.children[ino] = []
            return ino

    # ---- what tests ask ----

    def asked(self, kind: type[Asked]) -> list[Asked]:
        with self.changed:
            return [body for body in self.requests if isinstance(body, kind)]

    def wait_asked(self, kind: type[m.Message], count: int = 1, limit_s: float = 10.0) -> None:
        with self.changed:
            ok = self.changed.wait_for(
                lambda: sum(isinstance(body, kind) for body in self.requests) >= count, limit_s
            )
        assert ok, f"{kind.__name__} did not come {count} times: {self.requests[-20:]}"

    def hold(self, kind: type[m.Message]) -> threading.Event:
        """Answers of this kind wait until the event is set."""
        self.gates[kind] = threading.Event()
        return self.gates[kind]

    # ---- sockets ----

    def __enter__(self) -> FakeNode:
        return self

    def __exit__(self, *_: object) -> None:
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        for gate in self.gates.values():
            gate.set()
        self.cut()
        self._directory.cleanup()

    def session_socket(self) -> socket.socket:
        """The client's end of a new session."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._start(ours)
        return theirs

    def listen(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut(self) -> None:
        """Ends every session, as a server that dies."""
        for sock in self._sessions:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._sessions.clear()
        self.open_handles.clear()

    def event(self, body: m.Message, fd: int | None = None) -> None:
        """To every session; the descriptor stays the caller's."""
        for sock in self._sessions:
            _send(sock, m.encode(0, body), fd)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._start(listener.accept()[0])

    def _start(self, sock: socket.socket) -> None:
        self._sessions.append(sock)
        threading.Thread(target=self._session, args=(sock,), daemon=True).start()

    def _session(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError), sock:
            while data := sock.recv(m.MAX_FRAME_BYTES):
                frame = m.decode(data)
                with self.changed:
                    self.requests.append(frame.body)
                    self.changed.notify_all()
                gate = self.gates.get(type(frame.body))
                if gate is None or gate.is_set():
                    self._answer(sock, frame)
                else:
                    threading.Thread(
                        target=self._answer_later, args=(sock, frame, gate), daemon=True
                    ).start()

    def _answer_later(self, sock: socket.socket, frame: m.Frame, gate: threading.Event) -> None:
        assert gate.wait(30)
        with contextlib.suppress(OSError):
            self._answer(sock, frame)

    def _answer(self, sock: socket.socket, frame: m.Frame) -> None:
        try:
            script = self.scripts.get(type(frame.body), self.default)
            body, fd = script(frame.body)
        except CacheFSError as err:
            body, fd = m.failure_of(err), None
        if isinstance(frame.body, _NO_ANSWER):
            return
        try:
            _send(sock, m.encode(frame.id, body), fd)
        finally:
            if fd is not None:
                os.close(fd)

    # ---- answers ----

    def default(self, body: m.Message) -> Answer:
        with self._lock:
            return self._default(body)

    def _default(self, body: m.Message) -> Answer:
        match body:
            case m.Hello():
                return m.Welcome(os.getpid(), published_dir=True), os.open(self.pub, os.O_RDONLY)
            case m.Attach():
                return m.Attached(NAMESPACE, self.inodes[ROOT_INO]), None
            case m.Lookup():
                return m.Found(self._child(body.parent, body.name), self.valid_for_s), None
            case m.GetAttr():
                return m.Found(self._inode(body.ino), self.valid_for_s), None
            case m.ListDir():
                return self._list(body), None
            case m.Open():
                return self._open(body)
            case m.Ensure():
                end = min(body.offset + body.size, len(self.contents[self._handle(body.handle)]))
                return m.Ensured(body.offset, end), None
            case m.Release():
                self.open_handles.pop(body.handle, None)
        return m.Done(), None

    def _inode(self, ino: int) -> Inode:
        if ino not in self.inodes:
            raise Stale("no such ino")
        return self.inodes[ino]

    def _handle(self, handle: int) -> int:
        if handle not in self.open_handles:
            raise NotFound(f"no such handle {handle}")
        return self.open_handles[handle]

    def _child(self, parent: int, name: bytes) -> Inode | None:
        rows = self.children[self._inode(parent).ino]
        return next((self.inodes[ino] for _, child, ino in rows if child == name), None)

    def _list(self, body: m.ListDir) -> m.Listing:
        rows = self.children[self._inode(body.ino).ino]
        start = bisect.bisect_right(rows, body.after, key=lambda row: row[0]) if body.after else 0
        page = rows[start : start + body.limit]
        entries = [m.Dentry(name, msgspec.Raw(_encode(self.inodes[ino]))) for _, name, ino in page]
        more = start + body.limit < len(rows)
        return m.Listing(entries, page[-1][0] if more else b"", self.valid_for_s)

    def _open(self, body: m.Open) -> Answer:
        """Small ones whole, others partial."""
        inode = self._inode(body.ino)
        if body.nonce not in (0, inode.nonce):
            raise Stale("the ino is another file")
        complete = inode.size <= 8 << 20
        handle = 0
        if self.keeps_complete or not (complete and body.complete_needs_no_release):
            self._last_handle = handle = self._last_handle + 1
            self.open_handles[handle] = body.ino
        return m.Opened(handle, inode.size, complete, True), self.open_cache_file(body.ino)


def _send(sock: socket.socket, data: bytes, fd: int | None) -> None:
    rights = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
    sock.sendmsg([data], rights)
