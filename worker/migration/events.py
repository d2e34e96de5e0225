"""What migration's decisions hear and ask for: the events and actions of `Giver` and `Taker`. Pure
values. `peer` is a member of the view; `contents` are `ContentId.key`s; page bitmaps have bit i for
page i of the content.
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
    """The ino in a `ContentId.key`, which starts with the namespace (16 bytes) and the ino (8)."""
    return int.from_bytes(key[16:24], "big")


def pages_of(bits: int, block: int) -> int:
    """The bitmap of one block, cut out of its content's."""
    return bits >> block * BLOCK_PAGES & BLOCK_MASK


# ---- events --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ViewCame:
    """The master has a view; the same one may come again."""

    view: View


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


@dataclass(frozen=True, slots=True)
class Scanned:
    """The answer to `Scan`. `after`: where to go on, b"" at the end. `failed`: the index could not
    be read."""

    epoch: int
    holdings: tuple[Holding, ...]
    after: bytes
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Filled:
    """Something of these came here just now."""

    holdings: tuple[Holding, ...]


@dataclass(frozen=True, slots=True)
class OwnersChanged:
    """Policies say of some contents that more own them than before, or it was not known here."""


@dataclass(frozen=True, slots=True)
class HaveCame:
    """The answer to `AskHave`, None where the peer did not answer."""

    epoch: int
    peer: str
    pages: dict[bytes, int] | None


@dataclass(frozen=True, slots=True)
class OfferAnswered:
    """The answer to `SendOffer`; None: it was taken."""

    epoch: int
    peer: str
    failure: CacheFSError | None


@dataclass(frozen=True, slots=True)
class Outdated:
    """Contents that no file has any more: nobody needs them."""

    epoch: int
    peer: str
    keys: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class OfferCame:
    """Another worker has what is ours now. Decided at once: the first action is `Answer`."""

    offer: Offer


@dataclass(frozen=True, slots=True)
class LookedAt:
    """The answer to `LookAt`, None where the giver did not answer."""

    epoch: int
    giver: str
    pages: dict[bytes, int] | None


@dataclass(frozen=True, slots=True)
class Brought:
    """A `Bring` ended. `size_bytes` came from peers."""

    bring: Bring
    size_bytes: int
    failure: CacheFSError | None


# ---- actions -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scan:
    """What is cached here, in key order from `after` on, at most `limit` contents."""

    epoch: int
    after: bytes
    limit: int


@dataclass(frozen=True, slots=True)
class AskHave:
    """Which pages has this peer of these?"""

    epoch: int
    peer: Member
    contents: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class SendOffer:
    """Tells the owner of these blocks that they are here, but for those that are `Outdated`, of
    which the giver hears first. `replicas`: how many own each of them, in order."""

    epoch: int
    peer: Member
    blocks: tuple[Block, ...]
    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """To the offer that just came; None: taken."""

    failure: CacheFSError | None


@dataclass(frozen=True, slots=True)
class RefreshView:
    """Somebody knows of a later epoch: ask the master."""


@dataclass(frozen=True, slots=True)
class LookAt:
    """Which pages of these has the giver that are not here?"""

    epoch: int
    giver: str
    url: str
    contents: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Bring:
    """Pages [first, end) of a content, from the worker that offered them (or another), never from
    the origin."""

    key: bytes
    first: int
    end: int
    giver: str
    url: str


Event = (
    ViewCame | Tick | Scanned | Filled | OwnersChanged
    | HaveCame | OfferAnswered | Outdated
    | OfferCame | LookedAt | Brought
)  # fmt: skip
Action = Scan | AskHave | SendOffer | Answer | RefreshView | LookAt | Bring
