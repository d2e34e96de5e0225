"""In which order cached files may go: SIEVE and LRU behind one interface, and copies of what others
own before everything else. Pure.

Every operation is O(1) amortised (`worker.tier.eviction_slots`).

The caller evicts: `candidates` only names files, `remove` is called for those that went, `defer`
for those that must stay for now (in use, or protected by a policy). What is held is set aside: it
is not named before it is released.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from worker.tier.eviction_slots import END, EvictionSlots
from worker.tier.eviction_slots import NEVER_S as NEVER_S


class EvictionOrder(Protocol):
    """Keys in the order in which they may go. Times are whole seconds of the wall clock."""

    def __len__(self) -> int: ...
    def __contains__(self, key: object) -> bool: ...

    def insert(self, key: bytes, last_use_s: int) -> None:
        """A new file, as the newest. Inserting a key again is a hit."""

    def insert_oldest(self, key: bytes, last_use_s: int) -> None:
        """A file known from before, older than everything inserted so far. Known keys stay."""

    def hit(self, key: bytes, now_s: int) -> None:
        """The file was used. An unknown key is ignored."""

    def defer(self, key: bytes) -> None:
        """The file cannot go now: not to be named again before others were."""

    def remove(self, key: bytes) -> None:
        """Removes a file. Ignores an unknown key."""

    def hold(self, key: bytes, until_s: int, *, though_read: bool = False) -> None:
        """It is not to go before `until_s` (at least 1; of a clock that only grows), or unless
        `though_read`, before it is read: who reads it releases it. An unknown key is ignored."""

    def release(self, key: bytes, now_s: int) -> None:
        """It may go, as if used at `now_s`: as the newest, or as the oldest if the oldest was used
        later. A key that is not held is ignored."""

    def held(self, key: bytes) -> tuple[int, bool]:
        """(until, though read) as in `hold`; (0, False) for what is not held."""

    def hold_all(self, keys: Iterable[bytes], until_s: int) -> list[bytes]:
        """Holds contents though they are read; returns those that were not held until then."""

    def release_all(self, keys: Iterable[bytes], until_s: int, now_s: int) -> list[bytes]:
        """Releases those of the contents that are held until then, and returns them."""

    @property
    def held_count(self) -> int: ...

    @property
    def first_release_s(self) -> int:
        """No hold ends before; `NEVER_S` when nothing is held."""

    def release_due(self, until_s: int, now_s: int) -> None:
        """Releases contents held until `until_s` or earlier: they are evicted before all others.
        Costs a pass over all files, except before `first_release_s`."""

    def candidates(self, count: int, idle_before_s: int = NEVER_S) -> list[bytes]:
        """Up to `count` keys, the first to go first, only such as were last used at or before
        `idle_before_s`. Fewer, even none, may come while others exist: ask again then."""

    def last_use_s(self, key: bytes) -> int:
        """Returns the last use of the key; `NEVER_S` while it is held. Raises KeyError."""

    def was_used(self, key: bytes) -> bool:
        """Returns whether it was used since its insertion. Raises KeyError."""

    def set_eviction(self, key: bytes, name: str) -> None:
        """Sets the effect of a use of a file: `lru`, it becomes the newest; `sieve`, it is passed
        over once; "": the order's default. Ignores an unknown key."""

    def eviction(self, key: bytes) -> str:
        """Returns the rule that was set. Raises KeyError."""

    def set_owned(self, key: bytes, *, owned: bool) -> None:
        """Marks whether this node owns a file; others are evicted first. Ignores an unknown key,
        and everything where the order makes no difference."""

    @property
    def copy_count(self) -> int:
        """Returns the number of files that this node does not own."""

    def copies(self, count: int) -> list[bytes]:
        """Returns candidates among the files that this node does not own."""

    def keys(self) -> Iterator[bytes]:
        """Yields all keys, in no order. Nothing may be inserted or removed during the iteration."""

    def oldest_use_s(self) -> int:
        """A lower bound of all last uses; `NEVER_S` when there is nothing. Costs a pass over an
        array."""


class LruOrder(EvictionSlots):
    """LRU: the least recently used is evicted first. Uses of a file with the rule `sieve` only mark
    it: it is passed over once, at its turn."""

    def hit(self, key: bytes, now_s: int) -> None:
        slot = self._slot.get(key)
        if slot is None:
            return
        stays = self._other.get(slot) == "sieve"
        self._used[slot] = 1
        self._visited[slot] = stays
        if not self._held_until_s[slot]:
            self._last_use_s[slot] = now_s
            if not stays:
                self._to_newest(slot)

    def defer(self, key: bytes) -> None:
        slot = self._slot.get(key)
        if slot is not None and not self._held_until_s[slot]:
            self._to_newest(slot)

    def candidates(self, count: int, idle_before_s: int = NEVER_S) -> list[bytes]:
        found: list[bytes] = []
        slot = self._newer[END]
        for _ in range(count + MOST_SKIPPED):
            if slot == END or len(found) == count:
                break
            this, slot = slot, self._newer[slot]
            if self._visited[this] and idle_before_s == NEVER_S:
                self._visited[this] = 0
                self._to_newest(this)
            elif self._last_use_s[this] <= idle_before_s:
                found.append(self._key[this])
        return found


MOST_SKIPPED: Final = 4096  # files that one call looks at without a result, at most


class SieveOrder(EvictionSlots):
    """SIEVE: files stay in the order of insertion; a hand moves from the oldest to the newest and
    passes over those used since its last visit (Zhang et al., NSDI 2024). A file with the rule
    `lru` becomes the newest with each use."""

    def __init__(self) -> None:
        super().__init__()
        self._hand = END  # the next to look at; END: start at the oldest

    def hit(self, key: bytes, now_s: int) -> None:
        slot = self._slot.get(key)
        if slot is None:
            return
        moves = self._other.get(slot) == "lru"
        self._used[slot] = 1
        self._visited[slot] |= not moves
        if not self._held_until_s[slot]:
            self._last_use_s[slot] = now_s
            if moves:
                self._to_newest(slot)

    def defer(self, key: bytes) -> None:
        slot = self._slot.get(key)
        if slot is not None:
            self._visited[slot] = 1

    def _put_back(self, slot: int, now_s: int) -> None:
        self._visited[slot] = 0
        super()._put_back(slot, now_s)

    def _pass(self, slot: int) -> None:
        if self._hand == slot:
            self._hand = self._newer[slot]

    def candidates(self, count: int, idle_before_s: int = NEVER_S) -> list[bytes]:
        """The hand stops behind the last one named; those named keep their place. A pass that
        looks for idle files clears no marks."""
        found: list[bytes] = []
        named: set[int] = set()
        for _ in range(min(2 * (len(self._slot) - self._held), count + MOST_SKIPPED)):
            slot = self._hand or self._newer[END]
            if len(found) == count or slot in named:
                break
            self._hand = self._newer[slot]
            if idle_before_s != NEVER_S:
                take = self._last_use_s[slot] <= idle_before_s
            else:
                take = not self._visited[slot]
                self._visited[slot] = 0
            if take:
                named.add(slot)
                found.append(self._key[slot])
        return found


class CopiesFirstOrder:
    """Two orders of one kind: of copies of what other nodes own, which are evicted first, and of
    what this node owns. A copy that cannot be evicted now (in use, protected) is treated as owned
    until it is marked again: otherwise it would be named forever."""

    def __init__(self, copies: EvictionOrder, owned: EvictionOrder) -> None:
        self._copies = copies
        self._owned = owned

    def _of(self, key: object) -> EvictionOrder:
        return self._copies if key in self._copies else self._owned

    def __len__(self) -> int:
        return len(self._copies) + len(self._owned)

    def __contains__(self, key: object) -> bool:
        return key in self._owned or key in self._copies

    def insert(self, key: bytes, last_use_s: int) -> None:
        self._of(key).insert(key, last_use_s)

    def insert_oldest(self, key: bytes, last_use_s: int) -> None:
        self._of(key).insert_oldest(key, last_use_s)

    def hit(self, key: bytes, now_s: int) -> None:
        self._of(key).hit(key, now_s)

    def defer(self, key: bytes) -> None:
        self.set_owned(key, owned=True)
        self._owned.defer(key)

    def remove(self, key: bytes) -> None:
        self._of(key).remove(key)

    def set_owned(self, key: bytes, *, owned: bool) -> None:
        source, target = self._copies, self._owned
        if not owned:
            source, target = target, source
        if key not in source:
            return
        last_use_s, used = source.last_use_s(key), source.was_used(key)
        until_s, though_read = source.held(key)
        name = source.eviction(key)
        source.remove(key)
        target.insert(key, last_use_s)
        target.set_eviction(key, name)
        if used:
            target.hit(key, last_use_s)
        if until_s:
            target.hold(key, until_s, though_read=though_read)

    def set_eviction(self, key: bytes, name: str) -> None:
        self._of(key).set_eviction(key, name)

    def eviction(self, key: bytes) -> str:
        return self._of(key).eviction(key)

    def hold(self, key: bytes, until_s: int, *, though_read: bool = False) -> None:
        self._of(key).hold(key, until_s, though_read=though_read)

    def release(self, key: bytes, now_s: int) -> None:
        self._of(key).release(key, now_s)

    def held(self, key: bytes) -> tuple[int, bool]:
        return self._of(key).held(key)

    def hold_all(self, keys: Iterable[bytes], until_s: int) -> list[bytes]:
        copies, owned = self._split(keys)
        return [*self._copies.hold_all(copies, until_s), *self._owned.hold_all(owned, until_s)]

    def release_all(self, keys: Iterable[bytes], until_s: int, now_s: int) -> list[bytes]:
        copies, owned = self._split(keys)
        released = self._copies.release_all(copies, until_s, now_s)
        return [*released, *self._owned.release_all(owned, until_s, now_s)]

    def _split(self, keys: Iterable[bytes]) -> tuple[list[bytes], list[bytes]]:
        """Returns the copies among the keys, and the others."""
        keys = [*keys]
        copies = [key for key in keys if key in self._copies]
        if not copies:
            return copies, keys
        return copies, [key for key in keys if key not in self._copies]

    @property
    def held_count(self) -> int:
        return self._copies.held_count + self._owned.held_count

    @property
    def first_release_s(self) -> int:
        return min(self._copies.first_release_s, self._owned.first_release_s)

    def release_due(self, until_s: int, now_s: int) -> None:
        self._copies.release_due(until_s, now_s)
        self._owned.release_due(until_s, now_s)

    @property
    def copy_count(self) -> int:
        return len(self._copies)

    def copies(self, count: int) -> list[bytes]:
        return self._copies.candidates(count)

    def candidates(self, count: int, idle_before_s: int = NEVER_S) -> list[bytes]:
        found = self._copies.candidates(count, idle_before_s)
        return [*found, *self._owned.candidates(count - len(found), idle_before_s)]

    def last_use_s(self, key: bytes) -> int:
        return self._of(key).last_use_s(key)

    def was_used(self, key: bytes) -> bool:
        return self._of(key).was_used(key)

    def keys(self) -> Iterator[bytes]:
        yield from self._copies.keys()
        yield from self._owned.keys()

    def oldest_use_s(self) -> int:
        return min(self._copies.oldest_use_s(), self._owned.oldest_use_s())


def eviction_order(name: str, *, owned_last: bool = False) -> EvictionOrder:
    """`sieve` or `lru`. Raises ValueError for any other name."""
    if owned_last:
        return CopiesFirstOrder(eviction_order(name), eviction_order(name))
    if name == "sieve":
        return SieveOrder()
    if name == "lru":
        return LruOrder()
    raise ValueError(f"no eviction order {name!r}")
