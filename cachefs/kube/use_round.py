"""Measures what the master has of each Dataset: its policies, and how much is cached.

One after the other, with a bounded share of the master's time, as it walks the names of each.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

from cachefs.core.errors import CacheFSError
from cachefs.kube.dataset import Dataset
from cachefs.kube.master_calls import MasterCalls
from cachefs.kube.status import Phase
from cachefs.kube.steps import Measured

log = logging.getLogger(__name__)

ROUND_S: Final = 300.0  # for all Datasets
TIMES: Final = 50  # the pause after a measurement, in durations of the measurement


class UseRound:
    """The measurements. `measured` is called with each one. Belongs to one event loop."""

    def __init__(
        self,
        calls: MasterCalls,
        datasets: Callable[[], Iterable[Dataset]],
        measured: Callable[[Dataset, Measured], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._calls = calls
        self._datasets = datasets
        self._measured = measured
        self._clock = clock

    async def run(self) -> None:
        """Measures until cancelled."""
        while True:
            chosen = [one for one in self._datasets() if _is_at_rest(one)]
            for dataset in chosen:
                took_s = await self._measure(dataset)
                await asyncio.sleep(pause_s(len(chosen), took_s))
            if not chosen:
                await asyncio.sleep(ROUND_S)

    async def _measure(self, dataset: Dataset) -> float:
        """Returns how long it took. Raises nothing."""
        began_s = self._clock()
        try:
            use = await self._calls.use(dataset.path)
            policy = await self._calls.policy(dataset.path)
        except CacheFSError as err:
            log.info("%s is not measured: %s", dataset.path, err.one_line())
        else:
            self._measured(dataset, Measured(use, policy))
        return self._clock() - began_s


def pause_s(count: int, took_s: float) -> float:
    """Returns the pause after one of `count` measurements, which took `took_s`."""
    return max(ROUND_S / count, TIMES * took_s)


def _is_at_rest(dataset: Dataset) -> bool:
    return dataset.status.phase in (Phase.LOADED, Phase.ATTACHED) and not dataset.is_deleting
