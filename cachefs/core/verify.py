"""What `cachefs fsck` asks of workers; a part of `cachefs.core.cluster`."""

from __future__ import annotations

from cachefs.core.messages import Message


class Verify(Message, frozen=True):
    """The receiver compares what it has of the pages [first, end) of a content, at most
    `MAX_DATA_PAGES`, with the checksums of when they came, and drops the content if one is wrong.
    No byte leaves the worker. Answered by Verified; raises NotFound where the first is missing."""

    content: bytes
    first: int
    end: int


class Verified(Message, frozen=True):
    """`pages`: how many were compared, from the first one on. `wrong`: the numbers of those that
    have other bytes."""

    pages: int
    wrong: list[int]
