"""Listings that can be asked again: iterators of pages that move on only when a page came.

A generator is dead after its first exception, and would then look like a listing that ended. So
every listing that may raise a retryable error is a `Pages`, and every wrapper a `WrappedPages`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import msgspec

from connectors.base import Page

State = TypeVar("State")


class Pages(Generic[State]):
    """Pages from `fetch(state) -> (page, next state or None at the end)`; the first state is None.
    When `fetch` raises, `next` may be called again and fetches the same page. For one thread."""

    def __init__(self, fetch: Callable[[State | None], tuple[Page, State | None]]) -> None:
        self._fetch = fetch
        self._state: State | None = None
        self._done = False

    def __iter__(self) -> Iterator[Page]:
        return self

    def __next__(self) -> Page:
        while not self._done:
            page, self._state = self._fetch(self._state)
            self._done = self._state is None
            if page.entries or page.hidden:
                return msgspec.structs.replace(page, last=True) if self._done else page
        raise StopIteration


class WrappedPages:
    """The same pages, each fetched through `around` (a retry, a limit, a meter)."""

    def __init__(
        self, inner: Iterator[Page], around: Callable[[Callable[[], Page | None]], Page | None]
    ) -> None:
        self._inner = inner
        self._around = around

    def __iter__(self) -> Iterator[Page]:
        return self

    def __next__(self) -> Page:
        page = self._around(lambda: next(self._inner, None))
        if page is None:
            raise StopIteration
        return page
