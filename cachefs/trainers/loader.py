"""A loader of batches whose state counts what it yielded, not what its processes prefetched."""

from __future__ import annotations

import collections
import gc
from collections.abc import Callable, Iterator
from typing import Any, Final

from cachefs.core.errors import BadConfig
from cachefs.trainers.sampler import OrderSampler

PREFETCH: Final = 2  # batches of each loader process; torch's default


class Batches:
    """The batch sampler of one loader. Loader processes draw batches before the loop gets them."""

    def __init__(self, sampler: OrderSampler, batch_size: int, drop_last: bool) -> None:
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last
        self._sizes: collections.deque[int] = collections.deque()  # drawn, and not taken
        self._left = 0  # batches of the iteration that were not taken

    def __len__(self) -> int:
        """The number of batches of a whole epoch, wherever the iteration begins."""
        return self._count(self.sampler.epoch_length)

    def __iter__(self) -> Iterator[list[int]]:
        self._sizes.clear()
        samples = self.sampler.begin()
        self._left = self._count(len(self.sampler))
        batch: list[int] = []
        for sample in samples:
            batch.append(sample)
            if len(batch) == self.batch_size:
                yield self._drawn(batch)
                batch = []
        if batch and not self.drop_last:
            yield self._drawn(batch)

    def take(self) -> None:
        """Reports to the sampler that the loop gets the next batch, and that this was the last."""
        self.sampler.advance(self._sizes.popleft())
        self._left -= 1
        if not self._left:
            self.sampler.end()

    def _drawn(self, batch: list[int]) -> list[int]:
        self._sizes.append(len(batch))
        return batch

    def _count(self, samples: int) -> int:
        whole, rest = divmod(samples, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)


class DataLoader:
    """torch's DataLoader over an `OrderSampler`, with `state_dict` and `load_state_dict`. A batch
    counts as consumed once it was yielded. One iteration at a time."""

    def __init__(
        self,
        dataset: Any,
        *,
        sampler: OrderSampler,
        batch_size: int = 1,
        num_workers: int = 0,
        drop_last: bool = False,
        **options: Any,
    ) -> None:
        """`options`: those of torch's DataLoader, except shuffle, batch_sampler and in_order."""
        wrong = {"shuffle", "batch_sampler", "in_order"}.intersection(options)
        if wrong:
            named = ", ".join(sorted(wrong))
            raise BadConfig(f"{named}: the sampler decides the order", remedy="leave it out")
        if batch_size < 1:
            raise BadConfig(f"batch_size {batch_size}: a batch has one sample or more")
        _check_length(dataset, len(sampler.manifest))
        self.dataset, self.sampler = dataset, sampler
        self.batch_size, self.num_workers, self.drop_last = batch_size, num_workers, drop_last
        self.batch_sampler = Batches(sampler, batch_size, drop_last)
        span = max(1, num_workers) * (options.get("prefetch_factor") or PREFETCH) * batch_size
        sampler.use_batches(batch_size, span)
        self._loader = torch_loader()(
            dataset, batch_sampler=self.batch_sampler, num_workers=num_workers, **options
        )

    def __len__(self) -> int:
        """The number of batches of a whole epoch, also for an iteration that resumes in it."""
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._begun():
            self.batch_sampler.take()
            yield batch
        self.sampler.end()  # also of an iteration without batches

    def _begun(self) -> Iterator[Any]:
        """Starts the loader processes. Their garbage collections leave out what exists now: to look
        at it would copy the memory that they share with this process."""
        if not self.num_workers or gc.get_freeze_count():  # then the program decides
            return iter(self._loader)
        gc.freeze()
        try:
            return iter(self._loader)
        finally:
            gc.unfreeze()

    def state_dict(self) -> dict[str, Any]:
        """Returns the sampler's state after the last batch that was yielded."""
        return self.sampler.state_dict()

    def load_state_dict(self, values: dict[str, Any]) -> None:
        """Continues behind the last batch of a state. Raises BadConfig."""
        self.sampler.load_state_dict(values)


def _check_length(dataset: Any, files: int) -> None:
    """Raises BadConfig for a data set with fewer items than the manifest has files: their numbers
    would differ, too."""
    try:
        items = len(dataset)
    except TypeError:  # the program decides what a number means
        return
    if items < files:
        raise BadConfig(
            f"the data set has {items} items, and the sampler's manifest {files} files",
            remedy="item i of the data set must be file i of the manifest",
        )


def torch_loader() -> Callable[..., Any]:
    """Returns torch's DataLoader. Raises ImportError with the remedy if torch is missing."""
    try:
        from torch.utils.data import DataLoader as TorchLoader
    except ImportError as err:
        raise ImportError("cachefs.torch.DataLoader needs torch: pip install torch") from err
    loader: Callable[..., Any] = TorchLoader
    return loader
