"""The holder's process: `python -I -m cachefs.holder DIRECTORY`. It listens at `holder.sock` in a
private directory until SIGTERM, and keeps descriptors for processes of its own user.

It keeps a mount alive while the processes that serve it are replaced: /dev/fuse stays open. Nothing
is written to a disk. After the end of a holder the processes that serve deposit again.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import socket
import sys
from collections.abc import Iterable

from cachefs.holder.holdings import Close, Holdings, Send
from cachefs.holder.protocol import SOCKET_NAME, Datagram, close_all, receive, send
from cachefs.network.unix_sockets import peer_credentials

MAX_CONNECTIONS = 64


class Holder:
    """The connections of one holder."""

    def __init__(self, listener: socket.socket) -> None:
        self._holdings = Holdings()
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._connections: set[socket.socket] = set()

    def run(self) -> None:
        """Answers requests. Never returns."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj in self._connections:  # else an earlier action has closed it
                    assert isinstance(key.fileobj, socket.socket)
                    self._answer(key.fileobj)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return  # the peer has gone, or no descriptor is left: it tries again
        if peer_credentials(sock)[1] != os.geteuid() or len(self._connections) >= MAX_CONNECTIONS:
            return sock.close()
        sock.setblocking(False)
        self._connections.add(sock)
        self._selector.register(sock, selectors.EVENT_READ)

    def _answer(self, sock: socket.socket) -> None:
        try:
            request = receive(sock)
        except BlockingIOError:
            return
        except ValueError as err:
            return self._act([Send(sock, Datagram("ERROR", data=str(err).encode()))])
        except OSError:
            request = None
        if request is None:
            return self._end(sock)
        self._act(self._holdings.handle(sock, request))

    def _act(self, actions: Iterable[Send | Close]) -> None:
        for action in actions:
            if isinstance(action, Close):
                close_all(action.fds)
            elif action.to in self._connections:
                assert isinstance(action.to, socket.socket)
                try:
                    send(action.to, action.datagram)
                except OSError:  # it does not read, or has ended
                    self._end(action.to)

    def _end(self, sock: socket.socket) -> None:
        self._connections.discard(sock)
        self._selector.unregister(sock)
        sock.close()
        self._act(self._holdings.ended(sock))


def _private_directory(path: str) -> int:
    """Returns a descriptor of a directory, which it makes if needed. Raises OSError, SystemExit."""
    if not os.path.lexists(path):
        os.mkdir(path, 0o700)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    info = os.fstat(fd)
    if info.st_uid != os.geteuid() or info.st_mode & 0o077:
        raise SystemExit(f"{path}: other users can use this directory; chmod 700 and chown it")
    return fd


def listen(path: str) -> socket.socket:
    """Binds the socket of a holder. Raises OSError; SystemExit if another holder is alive."""
    directory = _private_directory(path)
    lock = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=directory)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until the process ends
    except BlockingIOError:
        raise SystemExit(f"{path}: another holder uses this directory") from None
    if SOCKET_NAME in os.listdir(directory):
        os.unlink(SOCKET_NAME, dir_fd=directory)
    os.umask(0o077)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    listener.bind(f"/proc/self/fd/{directory}/{SOCKET_NAME}")
    listener.listen(MAX_CONNECTIONS)
    listener.setblocking(False)
    return listener


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -I -m cachefs.holder DIRECTORY")
    try:
        holder = Holder(listen(sys.argv[1]))
    except OSError as err:
        raise SystemExit(f"{sys.argv[1]}: {err.strerror}") from err
    print("ready", flush=True)
    holder.run()


if __name__ == "__main__":
    main()
