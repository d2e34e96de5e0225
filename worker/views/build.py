"""One pass over a view: its tree is changed to what the mount shows, or compared with it. Owned by
the loop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cachefs.core.errors import CacheFSError, Stale
from cachefs.core.model import SMALL_FILE_BYTES
from cachefs.core.policies import shown
from cachefs.core.units import format_size
from worker.store.view_records import FILE
from worker.views.walk import TreeWalk

if TYPE_CHECKING:
    from cachefs.core.services import MetadataService
    from worker.cache.cache_views import CacheViews
    from worker.cache.tier import Tier
    from worker.store.view_page import ViewPage
    from worker.store.view_records import NameRecord

SMALL_AT_ONCE: Final = 128
LARGE_AT_ONCE: Final = 4


@dataclass(slots=True)
class Built:
    """What a pass found. `missing`: files that could not be loaded; `error`: of the first one."""

    files: int = 0
    size_bytes: int = 0
    missing: int = 0
    missing_bytes: int = 0
    error: CacheFSError | None = None
    error_path: str = ""

    def count(self, page: ViewPage) -> None:
        files = [record for record in page.names.values() if record.kind == FILE]
        self.files += len(files)
        self.size_bytes += sum(record.size for record in files)

    @property
    def why(self) -> str:
        """One line about the files that are missing."""
        error = self.error.one_line() if self.error is not None else "it is not cached whole"
        return (
            f"{self.missing:,} of {self.files:,} files ({format_size(self.missing_bytes)} of "
            f"{format_size(self.size_bytes)}) are not cached; {self.error_path}: {error}"
        )


@dataclass(slots=True)
class ViewPass:
    """See the module. One pass at a time over one view. `loads`: what is missing is loaded."""

    cache: CacheViews
    tier: Tier
    service: MetadataService
    view: int
    path: bytes
    loads: bool = True
    built: Built = field(default_factory=Built)
    _small: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(SMALL_AT_ONCE))
    _large: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LARGE_AT_ONCE))

    async def survey(self, walk: TreeWalk) -> Built:
        """Counts files and bytes. Raises CacheFSError."""
        async for step in walk.steps():
            self.built.count(step.page)
        return self.built

    async def apply(self, walk: TreeWalk) -> Built:
        """Changes the tree, and loads what is missing. Raises CacheFSError, OSError."""
        views = self.tier.views
        async for page, finished in walk.steps():
            self.built.count(page)
            missing = await views.apply(page)
            if missing and self.loads:
                await self._load([page.names[key] for key in missing])
                missing = await views.apply(page)
            self._note_missing(page, missing)
            if missing and not self.loads:
                break  # before it lists more at the origin
            if finished is not None:
                await views.finish_directory(self.view, page.path, finished)
        return self.built

    async def differs(self, walk: TreeWalk) -> bool:
        """Returns whether the mount shows something else than the tree. Raises CacheFSError,
        OSError."""
        try:
            async for page, _ in walk.steps():
                self.built.count(page)
                if await self.tier.views.differs(page):
                    return True
        except Stale:
            return True
        return False

    # ---- loads ----

    async def _load(self, files: list[NameRecord]) -> None:
        await asyncio.gather(*map(self._load_one, files))

    async def _load_one(self, file: NameRecord) -> None:
        slots = self._small if file.size <= SMALL_FILE_BYTES else self._large
        async with slots:
            try:
                origin = await self.service.locate(file.ino)
                error = await self.cache.load(self.tier, origin)
            except CacheFSError as err:
                error = err
        if error is not None and self.built.error is None:
            self.built.error = error

    def _note_missing(self, page: ViewPage, keys: list[bytes]) -> None:
        self.built.missing += len(keys)
        self.built.missing_bytes += sum(page.names[key].size for key in keys)
        if keys and not self.built.error_path:
            self.built.error_path = shown(b"/".join((self.path, *page.path, keys[0])))
