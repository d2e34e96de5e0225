"""The orders in which the samples of an epoch are read, as functions. Pure.

A permutation of `range(n)` needs no memory and is computed in both directions: a Feistel network
over the smallest power of two that is not below n. A result outside of the range is passed through
the network again until it is inside (cycle walking), less than twice on average. The results are
the same in every version: trainers resume from positions that an earlier version computed.

An `Order` is the global order of one epoch. A `Share` is the part of it that one rank reads. Both
sides of an announcement (the sampler of a trainer, and the worker) compute it with this module.
"""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Iterable, Iterator
from typing import Annotated, Final, Literal

import msgspec

from cachefs.core.errors import BadConfig

ROUNDS: Final = 6
MOST_SAMPLES: Final = 1 << 48
SHUFFLES: Final = ("full", "block", "window", "none")

_M64: Final = (1 << 64) - 1
_KEYS: Final = struct.Struct(f"<{ROUNDS}Q")
_SEED: Final = struct.Struct("<QQQ")  # seed, epoch, part
_OUTER: Final = 0  # part of the permutation of all samples or blocks; that of a block is 1 + block

Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_SAMPLES)]
Number = Annotated[int, msgspec.Meta(ge=0)]


class Permutation:
    """A permutation of range(n) for a seed below 2**64."""

    __slots__ = ("_high_bits", "_keys", "_low_bits", "_low_mask", "n")

    def __init__(self, n: int, seed: int) -> None:
        bits = max(2, (n - 1).bit_length())
        self.n = n
        self._low_bits = (bits + 1) // 2
        self._low_mask = (1 << self._low_bits) - 1
        self._high_bits = bits - self._low_bits
        self._keys = _round_keys(seed)

    def __len__(self) -> int:
        return self.n

    def at(self, i: int) -> int:
        """Returns the element at place `i`. Raises IndexError."""
        _check_index(i, self.n)
        found = self._forward(i)
        while found >= self.n:
            found = self._forward(found)
        return found

    def inverse(self, j: int) -> int:
        """Returns the place of element `j`. Raises IndexError."""
        _check_index(j, self.n)
        found = self._backward(j)
        while found >= self.n:
            found = self._backward(found)
        return found

    def _forward(self, x: int) -> int:
        high, low = x >> self._low_bits, x & self._low_mask
        k0, k1, k2, k3, k4, k5 = self._keys
        low_bits, high_bits = self._low_bits, self._high_bits
        high ^= _mixed(low ^ k0, high_bits)
        low ^= _mixed(high ^ k1, low_bits)
        high ^= _mixed(low ^ k2, high_bits)
        low ^= _mixed(high ^ k3, low_bits)
        high ^= _mixed(low ^ k4, high_bits)
        low ^= _mixed(high ^ k5, low_bits)
        return high << low_bits | low

    def _backward(self, x: int) -> int:
        high, low = x >> self._low_bits, x & self._low_mask
        k0, k1, k2, k3, k4, k5 = self._keys
        low_bits, high_bits = self._low_bits, self._high_bits
        low ^= _mixed(high ^ k5, low_bits)
        high ^= _mixed(low ^ k4, high_bits)
        low ^= _mixed(high ^ k3, low_bits)
        high ^= _mixed(low ^ k2, high_bits)
        low ^= _mixed(high ^ k1, low_bits)
        high ^= _mixed(low ^ k0, high_bits)
        return high << low_bits | low


class Order(msgspec.Struct, frozen=True, dict=True):
    """The order in which the samples of `range(n)` are read in one epoch, by all ranks together.

    `shuffle`: "none" is 0, 1, 2 …; "full" permutes all samples. "block" permutes the blocks of
    `width` samples, and the samples of each block; "window" permutes only the samples of each
    block. Both read neighbours within a short time, which suits archives and large files."""

    n: Count
    seed: Number
    epoch: Number
    shuffle: Literal["none", "full", "block", "window"] = "full"
    width: Count = 0  # of a block or window, in samples

    def check(self) -> None:
        """Raises BadConfig if the fields are no order."""
        if self.shuffle not in SHUFFLES:
            raise BadConfig(f"no such shuffle: {self.shuffle!r}; write {', '.join(SHUFFLES)}")
        if self.shuffle in ("block", "window") and self.width < 1:
            raise BadConfig(f"a {self.shuffle} shuffle needs a width of at least 1")
        if not (0 <= self.n <= MOST_SAMPLES and 0 <= self.seed <= _M64 and 0 <= self.epoch <= _M64):
            raise BadConfig("the number of samples, the seed or the epoch is out of range")

    def at(self, position: int) -> int:
        """Returns the sample at a position. Raises IndexError."""
        _check_index(position, self.n)
        if self.shuffle == "none":
            return position
        if self.shuffle == "full":
            return self._outer.at(position)
        slot, place = self._place(position)
        block = self._block(slot)
        return block * self.width + self._inside(block).at(place)

    def position(self, index: int) -> int:
        """Returns the position of a sample. Raises IndexError."""
        _check_index(index, self.n)
        if self.shuffle == "none":
            return index
        if self.shuffle == "full":
            return self._outer.inverse(index)
        block = index // self.width
        return self._start(block) + self._inside(block).inverse(index % self.width)

    def indices(self, positions: Iterable[int]) -> Iterator[int]:
        """Yields the samples at these positions, faster than `at` where they are in order.
        Raises IndexError."""
        if self.shuffle in ("none", "full"):
            yield from map(self.at, positions)
            return
        last, first, inside = -1, 0, Permutation(0, 0)
        for position in positions:
            _check_index(position, self.n)
            slot, place = self._place(position)
            if slot != last:
                block = self._block(slot)
                last, first, inside = slot, block * self.width, self._inside(block)
            yield first + inside.at(place)

    # ---- blocks ----

    @functools.cached_property
    def _outer(self) -> Permutation:
        """Of all samples ("full"), or of the blocks ("block")."""
        length = self.n if self.shuffle == "full" else self._blocks
        return Permutation(length, _seed_of(self.seed, self.epoch, _OUTER))

    @functools.cached_property
    def _blocks(self) -> int:
        return -(-self.n // self.width)

    @functools.cached_property
    def _short_slot(self) -> int:
        """The place, among the blocks in the order of reading, of the last block, which may be
        shorter than the others."""
        last = self._blocks - 1
        return self._outer.inverse(last) if self.shuffle == "block" else last

    @functools.cached_property
    def _missing(self) -> int:
        """How many samples the last block has fewer than the others."""
        return self._blocks * self.width - self.n

    def _place(self, position: int) -> tuple[int, int]:
        """Returns which block in the order of reading has a position, and the place in it."""
        if position >= (self._short_slot + 1) * self.width - self._missing:
            position += self._missing
        return divmod(position, self.width)

    def _block(self, slot: int) -> int:
        """Returns the block that is read at a place in the order of reading."""
        return self._outer.at(slot) if self.shuffle == "block" else slot

    def _start(self, block: int) -> int:
        """Returns the first position of a block."""
        slot = self._outer.inverse(block) if self.shuffle == "block" else block
        return slot * self.width - (self._missing if slot > self._short_slot else 0)

    def _inside(self, block: int) -> Permutation:
        length = min(self.width, self.n - block * self.width)
        return Permutation(length, _seed_of(self.seed, self.epoch, 1 + block))


class Share(msgspec.Struct, frozen=True):
    """The positions that one rank reads: start + rank, start + rank + world_size, … `start`: the
    global position at which this run of the epoch began, so that any number of ranks can resume
    from it."""

    rank: Number = 0
    world_size: Number = 1
    start: Number = 0

    def check(self) -> None:
        """Raises BadConfig if the fields are no share."""
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            cause = f"rank {self.rank} does not exist with world_size {self.world_size}"
            raise BadConfig(cause, remedy="ranks are counted from 0 to world_size - 1")
        if self.start < 0:
            raise BadConfig(f"a share cannot begin at position {self.start}")

    def count(self, n: int) -> int:
        """Returns how many of the positions of range(n) this rank reads."""
        return len(self.positions(n))

    def at(self, i: int) -> int:
        """Returns the global position of this rank's sample number `i`."""
        return self.start + self.rank + i * self.world_size

    def number(self, position: int) -> int | None:
        """Returns which of this rank's samples is at a global position; None: another's, or one
        before the start."""
        number, rest = divmod(position - self.start - self.rank, self.world_size)
        return number if number >= 0 and not rest else None

    def positions(self, n: int) -> range:
        """Returns this rank's global positions in range(n)."""
        return range(self.start + self.rank, n, self.world_size)


def _check_index(index: int, n: int) -> None:
    if not 0 <= index < n:
        raise IndexError(f"{index} is not in range({n})")


def _mixed(x: int, bits: int) -> int:
    """Returns `bits` bits that depend on all bits of x (the multiplications of MurmurHash3)."""
    x = x * 0xFF51AFD7ED558CCD & _M64
    return ((x ^ x >> 32) * 0xC4CEB9FE1A85EC53 & _M64) >> 64 - bits


def _round_keys(seed: int) -> tuple[int, ...]:
    digest = hashlib.blake2b(
        seed.to_bytes(8, "little"), digest_size=_KEYS.size, person=b"cachefs rounds"
    )
    return _KEYS.unpack(digest.digest())


def _seed_of(seed: int, epoch: int, part: int) -> int:
    digest = hashlib.blake2b(_SEED.pack(seed, epoch, part), digest_size=8, person=b"cachefs order")
    return int.from_bytes(digest.digest(), "little")
