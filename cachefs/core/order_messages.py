"""The messages about orders: what a client will open next, announced ahead to the worker.

An order has a name, which is unique in its session. It ends when all of its files were opened, with
the session, at `EndOrder`, and after `IDLE_S` without an open. A session has at most `MOST_ORDERS`;
that of a mount has as many for each of its users, and for all of them the orders of `USERS` users.
A wrong order costs prefetched bytes and nothing else: opens never depend on it.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from cachefs.core.message import Message
from cachefs.core.model import NamespaceId
from cachefs.core.orders import Order, Share

MOST_ENTRIES: Final = 16_000  # of a list, in one frame; twice as many with 4 bytes each
MOST_ENTRY_BYTES: Final = 8 * MOST_ENTRIES
MOST_ORDERS: Final = 16  # of a session, or of one user of a mount
USERS: Final = 4  # that may take what is theirs in full, of one mount
MOST_LENGTH: Final = 1 << 32  # entries of a list
MOST_SPAN: Final = 1 << 20  # of `batch_span`
IDLE_S: Final = 600.0

OrderName = Annotated[str, msgspec.Meta(max_length=200)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class AnnounceOrder(Message, frozen=True):
    """Adds a piece to a list of `total` files: those at the places from `first` on. A piece with
    `first` 0 begins the list, and replaces an order with the same name; pieces follow each other
    without gaps. Answered by Done. Raises BadConfig for a piece that does not continue the list.

    `inos`: little endian, at most `MOST_ENTRY_BYTES`, of `entry_bytes` each: 8 (inode numbers) or 4
    (inode numbers less `base`). `batch_span`: how far opens may be out of order (loader processes x
    prefetched batches x batch size); 0: a default. `user`: of the mount, who announces; -1: the
    session is of one user. A server that does not know users counts all orders of a session."""

    namespace: NamespaceId
    name: OrderName
    first: Count
    inos: bytes
    total: Count
    batch_span: Count = 0
    base: Count = 0
    entry_bytes: int = 8
    user: int = -1


class AnnounceFunction(Message, frozen=True):
    """Announces the share of one rank of an order, over the files of a manifest. The attached
    descriptor is the table of their inode numbers (`cachefs.core.manifest_format`): a regular file,
    which the worker reads in place. Replaces an order with the same name. Answered by Done.
    Raises BadConfig if the table does not have `order.n` entries of this namespace."""

    namespace: NamespaceId
    name: OrderName
    order: Order
    share: Share
    batch_span: Count = 0


class EndOrder(Message, frozen=True):
    """Ends an order. Answered by Done, also if the session has no such order."""

    namespace: NamespaceId
    name: OrderName


class OrderState(Message, frozen=True):
    """Requests how far an order is. Answered by OrderStateReply. Raises NotFound for an order that
    the session does not have, or no longer."""

    namespace: NamespaceId
    name: OrderName


class OrderStateReply(Message, frozen=True):
    """Reply to OrderState. `position`: the place after the last file that was opened. `ahead_files`
    and `ahead_bytes` are in flight or not opened yet. `requested`: files that the worker prefetched
    or found in the cache. `late`: files that were opened before the worker requested them."""

    position: int
    ahead_files: int
    ahead_bytes: int
    requested: int
    late: int
    total: int
