"""The origin: files that never change, and a count of what was read of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from cachefs.core.errors import CacheFSError, Unreachable
from cachefs.core.model import PAGE_BYTES, ContentId, NamespaceId
from cachefs.core.pages import page_count, range_bytes
from tests.simulator.schedule import Process

NAMESPACE = NamespaceId(b"n" * 16)
Page = tuple[bytes, int]  # the right bytes of a page are what names it: content key, number
ORIGIN_S = 0.02  # an answer takes half of it to one and a half, and some for each page
BAD: Page = (b"", -1)  # any other bytes


@dataclass(frozen=True, slots=True)
class File:
    """One file. The sum of a page is the page itself: what differs from it is wrong."""

    ino: int
    size_bytes: int
    key: bytes
    pages: int

    def page_bytes(self, page: int) -> int:
        return range_bytes(self.size_bytes, page, page + 1)


def make_file(ino: int, size_bytes: int) -> File:
    key = ContentId(NAMESPACE, ino, 0, ino * 0x9E3779B97F4A7C15 & (1 << 64) - 1).key
    return File(ino, size_bytes, key, page_count(size_bytes))


class Read(NamedTuple):
    """Of one page. `up_to_date`: the reader had the master's view. `asked_for`: others were asked
    for just this page before; they say what they have from the first page of a question on."""

    began_s: float
    ended_s: float
    up_to_date: bool
    asked_for: bool


class Origin:
    """`down_until_s`: nobody reaches it. `cut_until_s`: by host, that one does not."""

    def __init__(self, random: random.Random, files: list[File]) -> None:
        self.by_ino = {file.ino: file for file in files}
        self.by_key = {file.key: file for file in files}
        self.reads: dict[Page, list[Read]] = {}
        self.latency_s = ORIGIN_S
        self.down_until_s = 0.0
        self.cut_until_s: dict[str, float] = {}
        self._random = random

    def away_until_s(self, host: str) -> float:
        return max(self.down_until_s, self.cut_until_s.get(host, 0.0))

    def read(
        self,
        process: Process,
        file: File,
        first: int,
        end: int,
        done: Callable[[list[Page] | CacheFSError], None],
        *,
        up_to_date: bool,
    ) -> None:
        began_s = process.now_s
        delay_s = self.latency_s * (0.5 + self._random.random()) + 0.002 * (end - first)

        def answer() -> None:
            if process.now_s < self.away_until_s(process.host):
                return done(Unreachable("the origin is not there"))
            found = [(file.key, page) for page in range(first, end)]
            for page in found:
                read = Read(began_s, process.now_s, up_to_date, page[1] == first)
                self.reads.setdefault(page, []).append(read)
            done(found)

        process.after(delay_s, answer)

    def try_way(self, process: Process, done: Callable[[CacheFSError | None], None]) -> None:
        """A request whose bytes nobody keeps."""

        def answer() -> None:
            is_away = process.now_s < self.away_until_s(process.host)
            done(Unreachable("the origin is not there") if is_away else None)

        process.after(self.latency_s * (0.5 + self._random.random()), answer)


__all__ = ["BAD", "NAMESPACE", "PAGE_BYTES", "File", "Origin", "Page", "make_file"]
