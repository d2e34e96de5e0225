"""Recovery from lost writes: a sync of the tier's disk has failed. Owned by the loop.

The kernel marks pages that it could not write as clean. They may be right in the page cache now and
zeros later. So the worker withdraws everything recorded since the last good sync: the tier leaves
service, open contents are dropped, the records are distrusted and their files unpublished, and the
tier returns. At its next open, a distrusted file on the disk is compared with its checksums.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from worker.store.index import IndexLost

if TYPE_CHECKING:
    from worker.tier.catalog import Catalog
    from worker.tier.contents import Contents
    from worker.tier.context import TierContext
    from worker.tier.disk import TierDisk
    from worker.tier.probe import TierWatch

log = logging.getLogger(__name__)


@dataclass(eq=False)
class LostWrites:
    """`withdraw` after each sync that failed; `try_again` now and then."""

    _context: TierContext
    _disk: TierDisk
    _contents: Contents
    _catalog: Catalog
    _watch: TierWatch

    async def withdraw(self, error: OSError, *, index_failed: bool) -> None:
        """Withdraws what was recorded since the last good sync, which the header distrusts already.
        `index_failed`: a commit has failed since then, so the index may be wrong as well."""
        log.error(
            "the cache disk lost bytes that were written to it (%s): files that were cached since "
            "the last sync are withdrawn, and verified when they are opened; the cache takes "
            "nothing new before a trial write succeeds; see to the disk",
            error.strerror or error,
        )
        self._disk.health.lost_writes(self._context.monotonic())
        self._watch.withdraw()
        await self._contents.guard.leave_all()
        await self._drop_live()
        try:
            if index_failed or isinstance(error, IndexLost):
                raise error
            await self._disk.threads.run(self._disk.directory.distrust)
        except OSError as err:
            return await self._abandon(err)
        self._disk.epoch = self._disk.directory.header.epoch
        self._watch.restore()

    async def _drop_live(self) -> None:
        try:
            await self._catalog.forsake()
        except OSError as err:  # their records are distrusted with the others
            log.warning("files that were open are not removed: %s", err.strerror or err)

    async def _abandon(self, error: OSError) -> None:
        """The index, or the header, cannot be relied on."""
        self._disk.health.lost = True
        log.error(
            "the cache's index may be wrong (%s): the cache is out of service, reads go past it; "
            "it starts empty once the worker is started again",
            error.strerror or error,
        )
        try:
            await self._disk.threads.run(self._disk.directory.abandon)
        except OSError as err:
            log.error(
                "the index cannot be set aside: %s; delete the cache directory %s before the "
                "worker is started again",
                err.strerror or err,
                self._context.config.cache_dir,
            )

    async def try_again(self) -> None:
        """Tries whether the disk takes writes again, when that is due."""
        if not self._disk.health.trial_due(self._context.monotonic()):
            return
        try:
            await self._disk.threads.run(self._disk.directory.try_to_write)
        except OSError as err:
            log.info("the cache disk does not take a trial write: %s", err.strerror or err)
            return self._disk.health.tried(self._context.monotonic(), reached_disk=False)
        log.info("the cache disk takes a trial write: the cache takes files again")
        self._disk.health.tried(self._context.monotonic(), reached_disk=True)
