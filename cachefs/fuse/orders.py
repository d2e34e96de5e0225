"""Orders that programs announce by ioctl on a directory of a mount (`cachefs.core.order_ioctl`).

They belong to the client's session with the node's server. A name is prefixed with the caller's
uid, so that users do not replace each other's orders, and the server limits those of each user.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from cachefs.core import messages as m
from cachefs.core.model import NamespaceId
from cachefs.core.order_ioctl import END, PIECE, STATE, ListPiece, ListState
from cachefs.fuse.held_pieces import HeldPieces
from cachefs.fuse.interrupts import read_status
from cachefs.fuse.server_calls import ServerCalls

COMMANDS: Final = frozenset((PIECE, END, STATE))
# Where a mount may be mapped for user namespaces, the kernel names the user only in requests that
# create something (`fuse_get_req` in fs/fuse/dev.c, Linux 6.12).
NOT_NAMED: Final = 0xFFFFFFFF


class Orders:
    """Those of one mount."""

    def __init__(self, node: ServerCalls, namespace: Callable[[], NamespaceId]) -> None:
        self._node = node
        self._namespace = namespace
        self._held = HeldPieces()

    def answer(self, command: int, user: int, argument: bytes) -> bytes | Awaitable[bytes]:
        """Returns what the ioctl writes into its buffer, at once or when awaited. Raises BadConfig,
        and when awaited the server's errors."""
        piece = ListPiece.decode(argument)
        name = f"{user}:{piece.name}"
        if command == PIECE:
            ready = self._held.add(name, piece)
            return self._announce(name, user, ready) if ready else b""
        if command == END:
            return self._end(name)
        return self._state(name, user)

    async def _announce(self, name: str, user: int, ready: list[ListPiece]) -> bytes:
        for piece in ready:
            request = m.AnnounceOrder(
                self._namespace(),
                name,
                piece.first,
                piece.entries,
                piece.total,
                piece.batch_span,
                piece.base,
                piece.width,
                user,
            )
            await self._node.ask(request, m.Done)
        return b""

    async def _end(self, name: str) -> bytes:
        self._held.take(name)
        await self._node.ask(m.EndOrder(self._namespace(), name), m.Done)
        return b""

    async def _state(self, name: str, user: int) -> bytes:
        await self._announce(name, user, self._held.take(name))
        request = m.OrderState(self._namespace(), name)
        state = await self._node.ask(request, m.OrderStateReply)
        return ListState(
            state.position,
            state.ahead_files,
            state.ahead_bytes,
            state.requested,
            state.late,
            state.total,
        ).encode()


def user_of(uid: int, pid: int) -> int:
    """Returns the user of a request: `uid` of its header, or who runs its caller, which waits for
    the answer. All users whose processes are not seen here (pid 0) count as one, `NOT_NAMED`."""
    if uid == NOT_NAMED:
        for line in read_status(pid).splitlines():
            if line.startswith(b"Uid:"):
                return int(line.split()[-1])  # of its file accesses
    return uid
