"""The state of a sampler: which order it is, and how much of it all ranks have consumed. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from cachefs.core.errors import BadConfig
from cachefs.core.orders import Order


class SamplerState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`position`: the number of samples of the epoch that all ranks together have consumed. Any
    number of ranks can resume from it. `identity`: of the manifest."""

    seed: int
    epoch: int
    position: int
    shuffle: str
    width: int
    files: int
    identity: int

    @classmethod
    def of(cls, order: Order, position: int, identity: int) -> SamplerState:
        return cls(order.seed, order.epoch, position, order.shuffle, order.width, order.n, identity)

    def order_for(self, order: Order, identities: Collection[int]) -> Order:
        """Returns the order that continues this state. `identities`: of the manifest, by this
        version and by earlier ones. Raises BadConfig if that is not an order of the same
        samples."""
        if self.files != order.n or self.identity not in identities:
            raise BadConfig(
                f"the state belongs to a manifest of {self.files} files, and this one has "
                f"{order.n}" + (" other ones" if self.files == order.n else ""),
                remedy="resume with the data set of that time, or start the epoch again",
            )
        if (self.shuffle, self.width) != (order.shuffle, order.width):
            raise BadConfig(
                f"the state is of a {self.shuffle} shuffle with width {self.width}, the sampler's "
                f"is {order.shuffle} with width {order.width}",
                remedy="make the sampler with the same shuffle",
            )
        if not 0 <= self.position <= order.n:
            raise BadConfig(f"the state's position {self.position} is not in the epoch")
        return msgspec.structs.replace(order, seed=self.seed, epoch=self.epoch)


def state_from(values: dict[str, Any]) -> SamplerState:
    """Returns the state that `msgspec.to_builtins` made. Raises BadConfig."""
    try:
        return msgspec.convert(values, SamplerState)
    except msgspec.ValidationError as err:
        raise BadConfig(f"not the state of a sampler: {err}") from err
