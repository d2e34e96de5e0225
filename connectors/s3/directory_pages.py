"""The pages of a directory in a store of keys. The next page is requested before the entries of the
current one are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cachefs.core.errors import CacheFSError, OriginError
from cachefs.core.model import Kind
from connectors.base import Entry, Page, order_key
from connectors.page_replies import PageReplies
from connectors.s3.listing import Listing, ListingProgress, directory_page

ANOTHER_ORDER: Final = "give the source the option --option ordered_listings=false"
Parsed = tuple[str, Callable[[], Listing]]


class DirectoryPages:
    """One listing. For one thread."""

    def __init__(
        self,
        prefix: str,
        where: str,
        replies: PageReplies,
        parse: Callable[[bytes], Parsed],
        *,
        checks_order: bool = False,
    ) -> None:
        """`parse` returns the token of the next page, "" at the end, and what makes the listing;
        both raise the errors of a bad reply. `where` is the path of errors. `checks_order`: a
        page with a name that is not behind those of the page before it is an error."""
        self._prefix = prefix
        self._where = where
        self._replies = replies
        self._parse = parse
        self._checks_order = checks_order
        self._last = b""
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
        if self._checks_order and page.entries:
            self._check_order(page.entries)
        return page, following or None

    def _check_order(self, entries: list[Entry]) -> None:
        """Raises OriginError for a page that begins before the end of the former one."""
        if self._last and _order(entries[0]) <= self._last:
            cause = "the server's listing is not in the order of Amazon S3's"
            raise OriginError(cause, remedy=ANOTHER_ORDER)
        self._last = _order(entries[-1])


def _order(entry: Entry) -> bytes:
    return order_key(entry.name, entry.fingerprint.kind is Kind.DIRECTORY)
