"""The drop of a content with damaged pages. Owned by the loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachefs.core.pages import PageMap

if TYPE_CHECKING:
    from worker.tier.catalog import Catalog


async def drop_damaged(catalog: Catalog, key: bytes) -> None:
    """Drops a content. Handles that are open find nothing in its file any more, but for what they
    were granted before, and have it fetched again. Raises OSError as `Catalog.drop`."""
    entry = catalog.live(key)
    try:
        await catalog.drop([key])
    finally:
        if entry is not None and entry.detached:
            entry.pages = PageMap(entry.size)
