"""Files that changed at their origin while they were read: reported to the master, and dropped."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from cachefs.core.errors import CacheFSError, Stale
from worker.runtime.tasks import within

if TYPE_CHECKING:
    from worker.tier.catalog import Catalog
    from worker.tier.context import TierContext
    from worker.tier.entry import Entry

log = logging.getLogger(__name__)


class ChangedFiles:
    """The changed files of one tier."""

    def __init__(self, context: TierContext, catalog: Catalog) -> None:
        self._context = context
        self._catalog = catalog

    async def changed(self, entry: Entry, error: CacheFSError) -> Stale:
        """Handles another version at the origin, or none: notifies the master and drops what is
        cached. Returns the error for every reader of a missing page."""
        stale = Stale(
            "the file changed at its origin" if isinstance(error, Stale) else error.cause,
            path=entry.origin.path.decode(errors="replace"),
        )
        stale.__cause__ = error
        if entry.failed is None:
            entry.failed = stale
            await self._report(entry)
            with contextlib.suppress(OSError):
                await self._catalog.drop([entry.key])
        return stale

    async def _report(self, entry: Entry) -> None:
        content = entry.origin.content
        try:
            report = self._context.metadata(content.namespace).report_changed(content.ino)
            await within(report, self._context.config.origin_deadline_s)
        except (CacheFSError, TimeoutError) as err:
            log.warning("%s: its change was not reported: %s", entry.origin.path, err)
