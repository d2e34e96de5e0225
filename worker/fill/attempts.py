"""The transfers of a fill, one after another. After a cut body the next one continues with the
first incomplete page, after a pause, until the origin's deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from cachefs.core.errors import AccessDenied, CacheFSError, CredentialsMissing
from worker.fill.retry import pause_s
from worker.fill.transfer import Transfer, of_source

if TYPE_CHECKING:
    from worker.fill.fetch import FailedAttempt, Piece
    from worker.fill.stalls import Stalls
    from worker.fill.supply import Supply
    from worker.tier.context import TierContext

_REFUSALS: Final = (AccessDenied, CredentialsMissing)  # of this worker, perhaps


class Attempts:
    """Runs the transfers of a tier's fills."""

    def __init__(self, context: TierContext, supply: Supply, stalls: Stalls) -> None:
        self._context = context
        self._supply = supply
        self._stalls = stalls

    async def run(
        self,
        piece: Piece,
        first: int,
        end: int,
        new_transfer: Callable[[int], Transfer],
        run: Callable[[Transfer], object],
        begun: FailedAttempt | None = None,
    ) -> None:
        """Runs transfers until the range is whole. Raises the error that ended the fill."""
        deadline_s = self._context.config.origin_deadline_s
        attempt, moved_at_s, stuck_s = 0, 0.0, 0.0
        error: CacheFSError | None
        while True:
            if begun is not None:
                transfer, error = begun.transfer, of_source(begun.error)
                begun = None
            else:
                transfer = new_transfer(first)
                transfer.limit_s = deadline_s - stuck_s
                error = await self._once(piece, transfer, run)
            if error is None or transfer.next_page == end:
                return
            if transfer.next_page > first or not attempt:
                # Waiting for a thread does not count as time of the origin.
                first, attempt, moved_at_s = transfer.next_page, 0, transfer.moved_s
            stuck_s = time.monotonic() - moved_at_s
            pause = pause_s(
                error,
                attempt=attempt,
                stuck_s=stuck_s,
                deadline_s=deadline_s,
                jitter=self._context.clocks.jitter(),
            )
            is_refused = isinstance(error, _REFUSALS) and self._supply.has_stand_in(piece)
            if (pause is None and not is_refused) or not piece.unsettled:
                raise error
            if is_refused or self._supply.is_cut_off(piece):
                self._stalls.origin_failed(piece.entry, error)
                piece.ask_peers()
            attempt += 1
            await asyncio.sleep(pause or 0.0)
            if not piece.unsettled:  # it was given up meanwhile
                raise error

    async def _once(
        self, piece: Piece, transfer: Transfer, run: Callable[[Transfer], object]
    ) -> CacheFSError | None:
        """Runs one request. Returns its error if that is the source's."""
        self._stalls.began(transfer, piece)
        try:
            await self._supply.run(piece, run, transfer)
        except CacheFSError as err:
            return of_source(err)
        finally:
            self._stalls.ended(transfer)
        return None
