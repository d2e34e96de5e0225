"""Open files and views of tiers, as the cache gives them to the node socket."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Grant(msgspec.Struct, frozen=True, gc=False):
    """An open file. `fd` is read-only and the receiver's to close: `complete`, every byte is in it;
    else it is the partial cache file (read what `ensure` granted), or None. `tier`: where it is."""

    handle: int
    size: int
    complete: bool
    fd: int | None
    tier: int = 0


class TierView(NamedTuple):
    """A tier as clients see it. `pub_fd`: its directory of published files, the cache's own; -1:
    it has none. `number` changes when that is another directory, `losses` when bytes that were
    written there are lost: what clients have of it is doubtful."""

    tier: int
    pub_fd: int
    in_service: bool
    number: int = 0
    losses: int = 0
