"""The messages of `cachefs fsck` to workers; a part of `cachefs.core.cluster`."""

from __future__ import annotations

from cachefs.core.messages import Message


class Verify(Message, frozen=True):
    """Compares the cached pages in [first, end) of a content, at most `MAX_DATA_PAGES`, with the
    checksums of their fill. The receiver drops the content if a page is wrong. No data leaves the
    worker. Answered by Verified; raises NotFound if the first page is missing."""

    content: bytes
    first: int
    end: int


class Verified(Message, frozen=True):
    """Reply to Verify. `pages`: the number of compared pages. `wrong`: the damaged ones."""

    pages: int
    wrong: list[int]
