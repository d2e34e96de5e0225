"""The samples of one rank, in an order that is a function of the seed, the epoch and a position."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Literal

import msgspec

from cachefs.core.errors import BadConfig
from cachefs.core.orders import Order, Share
from cachefs.trainers.announcer import Announcer
from cachefs.trainers.batch_shares import BatchShares, Locality
from cachefs.trainers.find_locality import find_locality
from cachefs.trainers.manifest import Manifest
from cachefs.trainers.sampler_state import SamplerState, state_from

LOOK_AHEAD: Final = 4096  # samples of this rank that are placed and announced ahead
PART: Final = 512  # samples of a list that are announced at once

Shuffle = Literal["none", "full", "block", "window"]


class OrderSampler:
    """A sampler for `torch.utils.data`. Announces its order to the node's server, which reads ahead
    in it. A loader reports what it yielded by `advance`; `cachefs.torch.DataLoader` does so.

    When an iteration was exhausted, the next one is of the next epoch unless `set_epoch` names
    another one."""

    def __init__(
        self,
        manifest: Manifest,
        *,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        shuffle: Shuffle = "full",
        width: int = 0,
        locality: bool | Locality = False,
        batch_size: int = 0,
        drop_last: bool = False,
        name: str = "",
    ) -> None:
        """`width`: of a block or window, in samples. `locality`: True finds the ranks' workers by
        torch.distributed. It needs the batch size of a rank, which `cachefs.torch.DataLoader` also
        sets. `drop_last`: ranks skip the last samples that are no whole share; otherwise they read
        some samples of the beginning again. `name`: of the announced order. Raises BadConfig."""
        self.manifest = manifest
        self._order = Order(len(manifest), seed, 0, shuffle, width)
        self._share = Share(rank, world_size, 0)
        self._order.check()
        self._share.check()
        self._drop_last = drop_last
        self._batch_size, self._span = batch_size, 0
        self._shares = self._shares_of(locality)
        self._consumed = 0  # samples of this rank since the share's start
        self._exhausted = False
        self._announcer = Announcer(manifest, name)
        weakref.finalize(self, self._announcer.close)

    @property
    def epoch(self) -> int:
        """The epoch of the current or the next iteration."""
        return self._order.epoch

    @property
    def position(self) -> int:
        """The number of samples of the epoch that all ranks together have consumed."""
        return min(len(self.manifest), self._share.at(self._consumed) - self._share.rank)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next iteration. The position is kept if this is the epoch of a
        loaded state."""
        if epoch != self.epoch:
            self._order = msgspec.structs.replace(self._order, epoch=epoch)
            self._order.check()
            self._begin(0)
        elif self._exhausted:
            self._begin(0)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state, of plain values: seed, epoch, position, and what they refer to."""
        state = SamplerState.of(self._order, self.position, self.manifest.identity)
        values: dict[str, Any] = msgspec.to_builtins(state)
        return values

    def load_state_dict(self, values: dict[str, Any]) -> None:
        """Continues from a state of any number of ranks. Raises BadConfig for the state of another
        manifest or shuffle, and is unchanged then."""
        state = state_from(values)
        identities = (self.manifest.identity, self.manifest.former_identity)
        self._order = state.order_for(self._order, identities)
        self._begin(state.position)

    def use_batches(self, batch_size: int, span: int) -> None:
        """Sets the batch size of a rank, and how far a loader's reads may be out of order."""
        self._batch_size, self._span = batch_size, span

    def advance(self, samples: int) -> None:
        """Reports that this rank consumed its next samples."""
        self._consumed += samples
        self._announcer.check(self._consumed)

    def __len__(self) -> int:
        """The number of samples of this rank from the position at which the iteration begins."""
        return self._count(self._share.start)

    @property
    def epoch_length(self) -> int:
        """The number of samples of this rank in a whole epoch."""
        return self._count(0)

    def __iter__(self) -> Iterator[int]:
        """Yields the numbers of this rank's files, from the consumed position on."""
        return self._to_the_end(self.begin())

    def begin(self) -> Iterator[int]:
        """Begins an iteration, as `__iter__`, for a loader that draws samples ahead: it calls `end`
        when the loop has all of them."""
        if self._exhausted:
            self.set_epoch(self.epoch + 1)
        self._begin(self.position)
        return self._samples()

    def end(self) -> None:
        """Ends the iteration: the next one is of the next epoch."""
        self._exhausted = True

    def _to_the_end(self, samples: Iterator[int]) -> Iterator[int]:
        yield from samples
        self.end()

    # ---- the order of this rank ----

    def _count(self, start: int) -> int:
        left, world_size = len(self.manifest) - start, self._share.world_size
        return left // world_size if self._drop_last else -(-left // world_size)

    def _begin(self, position: int) -> None:
        self._share = msgspec.structs.replace(self._share, start=position)
        self._consumed, self._exhausted = 0, False

    def _samples(self) -> Iterator[int]:
        behind = max(self._span, LOOK_AHEAD)  # of a loader that reports nothing
        for drawn, sample in enumerate(self._announced()):
            if drawn % PART == 0:
                self._announcer.check(max(self._consumed, drawn - behind))
            yield sample

    def _announced(self) -> Iterable[int]:
        """Announces this rank's samples, as a function if possible, and returns them."""
        if self._shares is not None:
            return self._listed(self._batches(self._shares))
        if self._announcer.function(self._order, self._share, self._span):
            return self._shared()
        samples = self._shared()
        return self._listed(iter(lambda: [*itertools.islice(samples, PART)], []))

    def _shared(self) -> Iterator[int]:
        """Returns this rank's share of the order, at equal distances."""
        first, step, n = self._share.start + self._share.rank, self._share.world_size, self._order.n
        positions = range(first, first + step * len(self), step)
        return self._order.indices(position % n for position in positions)

    def _listed(self, parts: Iterable[list[int]]) -> Iterator[int]:
        """Yields the samples of all parts, each some time after it was announced."""
        announce = self._announcer.listing(len(self), self._span)
        waiting: list[int] = []
        for part in parts:
            announce([self.manifest.ino(sample) for sample in part])
            waiting += part
            if len(waiting) > LOOK_AHEAD:
                yield from waiting[:-LOOK_AHEAD]
                del waiting[:-LOOK_AHEAD]
        yield from waiting

    def _batches(self, shares: BatchShares) -> Iterator[list[int]]:
        """Yields what this rank reads of each global batch. Raises BadConfig."""
        if not self._batch_size:
            raise BadConfig(
                "locality needs the batch size of a rank",
                remedy="use cachefs.torch.DataLoader, or give batch_size to the sampler",
            )
        start, world_size, n = self._share.start, self._share.world_size, self._order.n
        end = start + world_size * len(self)
        for first in range(start, end, world_size * self._batch_size):
            positions = range(first, min(end, first + world_size * self._batch_size))
            batch = [*self._order.indices(position % n for position in positions)]
            inos: Sequence[int] = [self.manifest.ino(sample) for sample in batch]
            yield shares.shares(batch, inos)[self._share.rank]

    def _shares_of(self, locality: bool | Locality) -> BatchShares | None:
        found = find_locality(self.manifest, self._share) if locality is True else locality
        if not found:
            return None
        if len(found.nodes) != self._share.world_size:
            raise BadConfig(f"locality names {len(found.nodes)} ranks of {self._share.world_size}")
        return BatchShares(found)
