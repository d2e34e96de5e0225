"""A request for a segment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cachefs.core.pages import ByteRange, PageRange
from worker.fill.segment import Area


@dataclass(frozen=True, slots=True)
class SegmentWant:
    """`gentle`: no reader waits for it, so it takes no room of segments that readers wait for or
    have not read. `is_needed` returns whether a reader still waits for it. `span`: the bytes of a
    part."""

    key: bytes
    file_bytes: int
    pages: PageRange
    span: ByteRange | None
    area: Area
    since_s: float
    gentle: bool
    is_needed: Callable[[], bool]
