"""The holder's process: `python -I -m cachefs.holder DIRECTORY`. It listens at `holder.sock` in a
private directory until SIGTERM, and keeps descriptors for processes of the holder's user.

It keeps a mount alive while the processes that serve it are replaced: /dev/fuse stays open. Nothing
is written to a disk. After the end of a holder the processes that serve deposit again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import selectors
import socket
import sys

from cachefs.holder.holdings import MAX_ENTRIES, Close, Holdings, Send
from cachefs.holder.protocol import SOCKET_NAME, Datagram, receive, send
from cachefs.network.unix_sockets import close_all, listen_in, peer_credentials

# Each mount has the connection of its claimant, and while that hands over the one of the next.
MAX_CONNECTIONS = 2 * MAX_ENTRIES + 64


class Holder:
    """The connections of one holder."""

    def __init__(self, listener: socket.socket) -> None:
        self._holdings = Holdings()
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def run(self) -> None:
        """Answers requests. Never returns."""
        while True:
            for key, _ in self._selector.select():
                key.data(key.fileobj)

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:
            return  # the peer has ended, or no descriptor is left: it tries again
        is_full = len(self._selector.get_map()) > MAX_CONNECTIONS
        if is_full or peer_credentials(sock)[1] != os.geteuid():
            return sock.close()
        sock.setblocking(False)
        self._selector.register(sock, selectors.EVENT_READ, self._answer)

    def _answer(self, sock: socket.socket) -> None:
        try:
            request = receive(sock)
        except ValueError as err:
            return self._act([Send(sock, Datagram("ERROR", data=str(err).encode()))])
        except OSError:  # its end; or an earlier action has closed it
            return self._end(sock)
        self._act(self._holdings.handle(sock, request))

    def _act(self, actions: list[Send | Close]) -> None:
        for action in actions:
            if isinstance(action, Close):
                close_all(action.fds)
                continue
            try:
                send(action.to, action.datagram)
            except OSError:  # it does not read, or has ended
                self._end(action.to)

    def _end(self, sock: socket.socket) -> None:
        """Closes a connection. Idempotent."""
        if sock.fileno() >= 0:
            self._selector.unregister(sock)
            sock.close()
            self._act(self._holdings.ended(sock))


def listen(path: str) -> socket.socket:
    """Binds the socket of a holder in a private directory, which it makes if needed. Raises
    OSError; SystemExit if other users can use the directory, or another holder is alive."""
    os.umask(0o077)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path)
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    info = os.fstat(directory)
    if info.st_uid != os.geteuid() or info.st_mode & 0o077:
        raise SystemExit(f"{path}: other users can use this directory; chmod 700 and chown it")
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until the process ends
    except BlockingIOError:
        raise SystemExit(f"{path}: another holder uses this directory") from None
    return listen_in(directory, SOCKET_NAME, MAX_CONNECTIONS)


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -I -m cachefs.holder DIRECTORY")
    # Entries and connections need more descriptors than the usual soft limit of 1024.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(OSError, ValueError):  # above fs.nr_open, which was lowered
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        holder = Holder(listen(sys.argv[1]))
    except OSError as err:
        raise SystemExit(f"{sys.argv[1]}: {err.strerror}") from err
    print("ready", flush=True)
    holder.run()


if __name__ == "__main__":
    main()
