"""The events and actions of migration's decisions (`MigrationSender` and `MigrationReceiver`). Pure
values.

`peer` is a member of the view; `contents` are `ContentId.key`s; a page bitmap has bit i for page i
of the content.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cachefs.core.cluster import Offer
from cachefs.core.errors import CacheFSError
from cachefs.core.model import PAGE_BYTES
from cachefs.core.placement import BLOCK_BYTES, Member, View
from worker.store.holdings import Holding

BLOCK_PAGES: Final = BLOCK_BYTES // PAGE_BYTES
BLOCK_MASK: Final = (1 << BLOCK_PAGES) - 1

Block = tuple[bytes, int]  # ContentId.key, number of the block


def ino_of(key: bytes) -> int:
    """Returns the ino of a `ContentId.key`: namespace (16 bytes), ino (8), and more."""
    return int.from_bytes(key[16:24], "big")


def pages_of(bits: int, block: int) -> int:
    """Returns the bitmap of one block, from the bitmap of its content."""
    return bits >> block * BLOCK_PAGES & BLOCK_MASK


# ---- events --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ViewReceived:
    """A view arrived from the master; it may be the same as before."""

    view: View


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Time passed."""


@dataclass(frozen=True, slots=True)
class Scanned:
    """The result of `Scan`. `after`: the key to continue after, b"" at the end. `failed`: the index
    could not be read."""

    epoch: int
    holdings: tuple[Holding, ...]
    after: bytes
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Filled:
    """Pages of these contents were filled here."""

    holdings: tuple[Holding, ...]


@dataclass(frozen=True, slots=True)
class OwnersChanged:
    """The replica count of some contents has grown by a policy, or has become known."""


@dataclass(frozen=True, slots=True)
class HaveReplied:
    """The result of `AskHave`; `pages` is None if the peer did not reply."""

    epoch: int
    peer: str
    pages: dict[bytes, int] | None


@dataclass(frozen=True, slots=True)
class OfferReplied:
    """The result of `SendOffer`; `failure` is None if the peer accepted the offer."""

    epoch: int
    peer: str
    failure: CacheFSError | None


@dataclass(frozen=True, slots=True)
class Outdated:
    """Contents of an offer that are stale: no file has them any more."""

    epoch: int
    peer: str
    keys: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class OfferReceived:
    """An offer from another worker of blocks that this one owns. Its first action is OfferReply."""

    offer: Offer


@dataclass(frozen=True, slots=True)
class PagesCompared:
    """The result of `LookAt`; `pages` is None if the sender did not reply."""

    epoch: int
    giver: str
    pages: dict[bytes, int] | None


@dataclass(frozen=True, slots=True)
class PagesFetched:
    """The end of an action `Bring`, which fetched `size_bytes` from peers."""

    bring: Bring
    size_bytes: int
    failure: CacheFSError | None


# ---- actions -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scan:
    """Lists up to `limit` contents cached here, in key order, with keys greater than `after`.
    `leaves_out_silent`: without those of disks that give no answer."""

    epoch: int
    after: bytes
    limit: int
    leaves_out_silent: bool = False


@dataclass(frozen=True, slots=True)
class AskHave:
    """Requests from a peer the bitmaps of its pages of these contents."""

    epoch: int
    peer: Member
    contents: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class SendOffer:
    """Offers blocks to their owner, without the stale ones, which an `Outdated` event reports
    first. `replicas`: the number of owners of each block."""

    epoch: int
    peer: Member
    blocks: tuple[Block, ...]
    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OfferReply:
    """The reply to an `OfferReceived`; None: accepted."""

    failure: CacheFSError | None


@dataclass(frozen=True, slots=True)
class RefreshView:
    """Fetches the view from the master, since a peer has a later epoch."""


@dataclass(frozen=True, slots=True)
class LookAt:
    """Requests from the sender the bitmaps of these contents, and selects pages missing here."""

    epoch: int
    giver: str
    url: str
    contents: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Bring:
    """Fetches pages [first, end) of a content from the worker that offered them, or another peer,
    never from the origin."""

    key: bytes
    first: int
    end: int
    giver: str
    url: str


Event = (
    ViewReceived | TimePassed | Scanned | Filled | OwnersChanged
    | HaveReplied | OfferReplied | Outdated
    | OfferReceived | PagesCompared | PagesFetched
)  # fmt: skip
Action = Scan | AskHave | SendOffer | OfferReply | RefreshView | LookAt | Bring
