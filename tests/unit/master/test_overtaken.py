"""Names that a listing in flight skips, as a later request had a reply about them."""

from __future__ import annotations

import asyncio

import pytest

from cachefs.core.errors import Throttled
from cachefs.core.model import Inode, Kind, UfsSpec
from master.origins import listing as module
from master.origins.listing import Listing
from master.state.merge import Action, Change
from master.state.records import MountRecord, Stored
from master.tree import Mount
from tests.services.memory import MemoryConnector

T0 = 1_700_000_000.0
FILE = Inode(7, Kind.FILE)


async def began() -> Listing:
    return Listing(3, Mount(3, MountRecord(UfsSpec("s3://x")), MemoryConnector(), 3600.0), T0)


def test_only_names_that_the_merge_would_not_protect_are_kept() -> None:
    listing = asyncio.run(began())
    replaced = Change(Action.REPLACE, b"replaced", None, None)
    listing.overtake(b"same", Stored(FILE, T0 + 1), [])
    listing.overtake(b"updated", Stored(FILE, T0 + 1), [Change(Action.UPDATE, b"u", None, None)])
    listing.overtake(b"gone", None, [])
    listing.overtake(b"replaced", Stored(FILE, T0 + 1), [replaced])
    listing.overtake(b"in-the-same-moment", Stored(FILE, T0), [])
    assert listing.skipped() == {b"gone", b"replaced", b"in-the-same-moment"}


def test_names_that_the_listing_has_passed_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_OVERTAKEN", 3)
    listing = asyncio.run(began())
    for name in (b"a", b"b", b"x"):
        listing.overtake(name, None, [])
    listing.advance(b"c")
    listing.overtake(b"bb", None, [])
    listing.overtake(b"y", None, [])
    assert listing.skipped() == {b"x", b"y"}


def test_a_listing_with_too_many_of_them_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would need memory without a limit. What is written of it stays."""
    monkeypatch.setattr(module, "MAX_OVERTAKEN", 3)
    listing = asyncio.run(began())
    for name in (b"a", b"b", b"c", b"d"):
        listing.overtake(name, None, [])
    with pytest.raises(Throttled):
        listing.skipped()
