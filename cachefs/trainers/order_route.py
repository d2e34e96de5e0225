"""The ways on which a sampler's order reaches the server of its mount: a session on the node's
socket, or ioctls on a directory of the mount where this process can have no session."""

from __future__ import annotations

from array import array
from typing import Final, Protocol

from cachefs.client.directory_orders import DirectoryOrders
from cachefs.core import messages as m
from cachefs.core.errors import AccessDenied, CacheFSError, NotFound, Unreachable
from cachefs.core.order_messages import MOST_ENTRIES
from cachefs.core.orders import Order, Share
from cachefs.core.owned_fd import OwnedFd
from cachefs.trainers.manifest import Manifest
from cachefs.trainers.mount_session import MountSession, connect_session, is_mounted

# A server that hangs must not keep a trainer from reading what is cached.
ANNOUNCE_S: Final = 5.0
ASK_S: Final = 0.5


class OrderRoute(Protocol):
    """Announces the orders of one sampler. Every method but `close` raises typed errors."""

    takes_functions: bool

    @property
    def is_over(self) -> bool:
        """Whether the server has ended, as far as that is known without a request."""

    def function(self, name: str, order: Order, share: Share, span: int) -> None:
        """Announces a rank's share of an order."""

    def part(self, name: str, first: int, inos: array[int], total: int, span: int) -> None:
        """Announces the places of a list from `first` on. Raises BadConfig for a part that does
        not continue the list."""

    def has(self, name: str) -> bool:
        """Returns whether the server still has an order. Raises DeadlineExceeded if it gives no
        answer."""

    def close(self, name: str) -> None:
        """Ends the order; idempotent, and without errors: orders also end by themselves."""


class SocketRoute:
    """A session of the sampler's own. Its orders end with it."""

    takes_functions = True

    def __init__(self, session: MountSession, ino_file: OwnedFd) -> None:
        self._session = session
        self._ino_file = ino_file

    @property
    def is_over(self) -> bool:
        return self._session.is_over

    def function(self, name: str, order: Order, share: Share, span: int) -> None:
        body = m.AnnounceFunction(self._session.namespace, name, order, share, span)
        self._session.call(body, m.Done, self._ino_file.fileno(), ANNOUNCE_S)

    def part(self, name: str, first: int, inos: array[int], total: int, span: int) -> None:
        for done in range(0, len(inos), MOST_ENTRIES):
            piece = inos[done : done + MOST_ENTRIES].tobytes()
            where = self._session.namespace, name, first + done
            body = m.AnnounceOrder(*where, piece, total, span)
            self._session.call(body, m.Done, timeout_s=ANNOUNCE_S)

    def has(self, name: str) -> bool:
        try:
            body = m.OrderState(self._session.namespace, name)
            self._session.call(body, m.OrderStateReply, timeout_s=ASK_S)
        except NotFound:
            return False
        return True

    def close(self, name: str) -> None:
        self._session.close()


class IoctlRoute:
    """A directory of the mount. The mount takes lists only, and knows them by user and name."""

    takes_functions = False
    is_over = False

    def __init__(self, path: str) -> None:
        self._orders = DirectoryOrders(path)

    def function(self, name: str, order: Order, share: Share, span: int) -> None:
        raise NotImplementedError("a mount takes lists only")

    def part(self, name: str, first: int, inos: array[int], total: int, span: int) -> None:
        self._orders.announce(name, inos, first=first, total=total, batch_span=span)
        self._orders.state(name)  # the mount holds nothing back then

    def has(self, name: str) -> bool:
        try:
            self._orders.state(name)
        except NotFound:
            return False
        return True

    def close(self, name: str) -> None:
        try:
            self._orders.end(name)
        except CacheFSError:
            return


def find_route(manifest: Manifest, wait_s: float) -> OrderRoute | None:
    """Returns how this process reaches the server of the manifest's mount; None if it is not on a
    mount. Waits up to `wait_s` for a server that is being restarted. Raises DeadlineExceeded for
    one that hangs."""
    try:
        session = connect_session(manifest.path, manifest.home, wait_s)
    except (Unreachable, AccessDenied):  # the socket is not for this process
        session = None
    if session is not None:
        return SocketRoute(session, manifest.ino_file)
    return IoctlRoute(manifest.path) if is_mounted(manifest.path) else None
