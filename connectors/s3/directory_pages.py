"""The pages of a directory in a store of keys. The next page is requested before the entries of the
current one are made."""

from __future__ import annotations

from collections.abc import Callable

from cachefs.core.errors import CacheFSError
from connectors.base import Page
from connectors.page_replies import PageReplies
from connectors.s3.listing import Listing, ListingProgress, directory_page

Parsed = tuple[str, Callable[[], Listing]]


class DirectoryPages:
    """One listing. For one thread."""

    def __init__(
        self, prefix: str, where: str, replies: PageReplies, parse: Callable[[bytes], Parsed]
    ) -> None:
        """`parse` returns the token of the next page, "" at the end, and what makes the listing;
        both raise the errors of a bad reply. `where` is the path of errors."""
        self._prefix = prefix
        self._where = where
        self._replies = replies
        self._parse = parse
        self._progress = ListingProgress()

    def fetch(self, token: str | None) -> tuple[Page, str | None]:
        """Returns the page of a token; see `connectors.pages.Pages`."""
        try:
            return self._fetch(token or "")
        except CacheFSError as error:
            self._replies.close()
            error.path = self._where
            raise

    def close(self) -> None:
        """Ends the request in flight. Idempotent."""
        self._replies.close()

    def _fetch(self, token: str) -> tuple[Page, str | None]:
        following, listing_of = self._parse(self._replies.body(token))
        if following != token and not self._progress.is_idle:  # else `check` may refuse the listing
            self._replies.ask(following)
        listing = listing_of()
        page = directory_page(listing, self._prefix)
        self._progress.check(token, listing)
        return page, following or None
