"""Listings that can be retried: iterators of pages that advance only after a page was fetched.

A generator ends at its first exception, and the next call would look like the end of the listing.
So a listing that may raise a retryable error is a `Pages`, and each wrapper a `WrappedPages`.
The reader of a listing uses `closing`, since the listing may have a request in flight.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar, runtime_checkable

import msgspec

from connectors.base import Page

State = TypeVar("State")


@runtime_checkable
class ClosableListing(Protocol):
    """A listing that has something to release, as a generator may."""

    def close(self) -> None:
        """Ends the listing. Idempotent; for the thread of the listing."""


def close_listing(pages: Iterator[Page]) -> None:
    """Ends a listing, if it has something to release. Idempotent."""
    if isinstance(pages, ClosableListing):
        pages.close()


@contextlib.contextmanager
def closing(pages: Iterator[Page]) -> Iterator[Iterator[Page]]:
    """Ends the listing with the block, read to its end or not."""
    try:
        yield pages
    finally:
        close_listing(pages)


def _nothing() -> None:
    """Releases nothing."""


class Pages(Generic[State]):
    """Pages from `fetch(state) -> (page, next state or None at the end)`; the first state is None.
    If `fetch` raises, the following `next` fetches the same page again. `close` releases what
    `fetch` uses. For one thread."""

    def __init__(
        self,
        fetch: Callable[[State | None], tuple[Page, State | None]],
        close: Callable[[], None] = _nothing,
    ) -> None:
        self._fetch = fetch
        self._close = close
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

    def close(self) -> None:
        """Ends the listing. Idempotent."""
        self._done = True
        self._close()


class WrappedPages:
    """The pages of `inner`, each fetched through `around` (a retry, a limit, a meter)."""

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

    def close(self) -> None:
        """Ends the listing. Idempotent."""
        close_listing(self._inner)
