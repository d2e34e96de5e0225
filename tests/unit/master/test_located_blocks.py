"""The blocks of a file in the admin API: how much of each is cached, and of how many it tells."""

from __future__ import annotations

import asyncio
import random

import pytest

from cachefs.core.model import ContentId, Inode, Kind, NamespaceId
from cachefs.core.pages import BLOCK_PAGES, PAGE_BYTES
from cachefs.core.placement import Member, Placement
from cachefs.core.policies import NO_RULE
from master.server.admin import files
from master.server.admin.files import File

PLACEMENT = Placement([Member("a", "http://a", 1.0)])


def located(size: int, bitmaps: dict[str, int], most: int) -> dict[int, dict[str, int]]:
    """Returns the counts of cached pages of each block, by worker."""
    inode = Inode(2, Kind.FILE, size)
    file = File(b"f", inode, ContentId.of(NamespaceId(b"n" * 16), inode))
    found = asyncio.run(files._file_at(file, NO_RULE, bitmaps, PLACEMENT, most))
    return {block.block: {one.worker: one.pages for one in block.cached} for block in found.blocks}


@pytest.mark.parametrize("seed", range(8))
def test_pages_are_counted_by_block(seed: int) -> None:
    chance = random.Random(seed)
    pages = chance.randint(1, 5 * BLOCK_PAGES)
    bits = chance.getrandbits(pages)
    found = located(pages * PAGE_BYTES, {"a": bits, "b": 0}, files.MOST_BLOCKS)
    for number in range(-(-pages // BLOCK_PAGES)):
        count = (bits >> number * BLOCK_PAGES & (1 << BLOCK_PAGES) - 1).bit_count()
        assert found[number] == ({"a": count} if count else {})


def test_a_file_of_an_absurd_size_has_no_end_of_blocks() -> None:
    bits = 0b11 | 1 << 2 * BLOCK_PAGES
    assert located(1 << 62, {"a": bits, "b": 1}, files.MOST_BLOCKS) == {
        0: {"a": 2, "b": 1},
        2: {"a": 1},
    }
    assert located(1 << 62, {}, files.MOST_BLOCKS) == {}
