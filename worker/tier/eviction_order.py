"""In which order cached files may go: SIEVE and LRU behind one interface, and copies of what others
own before everything else. Pure.

Every operation is O(1) amortised. A file costs one dict entry and about 20 bytes in arrays: nodes
of the list are numbers (slots), slot 0 is the list's end on both sides.

The caller evicts: `candidates` only names files, `remove` is called for those that went, `defer`
for those that must stay for now (in use, or protected by a policy). What is held is set aside: it
is not named before it is released.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final, Protocol

NEVER_S: Final = (1 << 32) - 1  # last use of a free slot, so that it is never the oldest
END: Final = 0


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


class _Slots:
    """A doubly linked list of keys in arrays, from the oldest to the newest."""

    def __init__(self) -> None:
        self._slot: dict[bytes, int] = {}
        self._key: list[bytes] = [b""]
        self._newer = array("I", [END])  # of END: the oldest
        self._older = array("I", [END])  # of END: the newest
        self._last_use_s = array("I", [NEVER_S])
        self._used = bytearray(1)
        self._visited = bytearray(1)
        self._other: dict[int, str] = {}  # slots of files with an order of their own
        self._held_until_s = array("I", [0])  # 0: not held, and in the list
        self._held_though_read = bytearray(1)
        self._first_release_s = NEVER_S
        self._held = 0
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._slot)

    def __contains__(self, key: object) -> bool:
        return key in self._slot

    def insert(self, key: bytes, last_use_s: int) -> None:
        if key in self._slot:
            return self.hit(key, last_use_s)
        self._link(self._new_slot(key, last_use_s), self._older[END], END)

    def insert_oldest(self, key: bytes, last_use_s: int) -> None:
        if key not in self._slot:
            self._link(self._new_slot(key, last_use_s), END, self._newer[END])

    def hit(self, key: bytes, now_s: int) -> None:
        """See `EvictionOrder`; of a subclass."""
        raise NotImplementedError

    def remove(self, key: bytes) -> None:
        slot = self._slot.get(key)
        if slot is not None:
            self._pass(slot)
            self._drop(key)

    def _to_newest(self, slot: int) -> None:
        self._pass(slot)
        self._unlink(slot)
        self._link(slot, self._older[END], END)

    def _pass(self, slot: int) -> None:
        """Called before a slot leaves its place in the list."""

    def last_use_s(self, key: bytes) -> int:
        return self._last_use_s[self._slot[key]]

    def was_used(self, key: bytes) -> bool:
        return bool(self._used[self._slot[key]])

    def set_owned(self, key: bytes, *, owned: bool) -> None:
        pass

    @property
    def copy_count(self) -> int:
        return 0

    def copies(self, count: int) -> list[bytes]:
        return []

    def keys(self) -> Iterator[bytes]:
        return iter(self._slot)

    def oldest_use_s(self) -> int:
        return min(self._last_use_s)

    def _new_slot(self, key: bytes, last_use_s: int) -> int:
        if self._free:
            slot = self._free.pop()
            self._key[slot] = key
            self._last_use_s[slot] = last_use_s
            self._used[slot] = self._visited[slot] = 0
        else:
            slot = len(self._key)
            self._key.append(key)
            self._last_use_s.append(last_use_s)
            self._used.append(0)
            self._visited.append(0)
            self._newer.append(END)
            self._older.append(END)
            self._held_until_s.append(0)
            self._held_though_read.append(0)
        self._slot[key] = slot
        return slot

    def _link(self, slot: int, older: int, newer: int) -> None:
        self._older[slot], self._newer[slot] = older, newer
        self._newer[older] = slot
        self._older[newer] = slot

    def _unlink(self, slot: int) -> None:
        older, newer = self._older[slot], self._newer[slot]
        self._newer[older] = newer
        self._older[newer] = older

    def _drop(self, key: bytes) -> None:
        slot = self._slot.pop(key)
        if self._held_until_s[slot]:
            self._held_until_s[slot] = 0
            self._held -= 1
        else:
            self._unlink(slot)
        self._key[slot] = b""
        self._last_use_s[slot] = NEVER_S
        self._other.pop(slot, None)
        self._free.append(slot)

    def set_eviction(self, key: bytes, name: str) -> None:
        slot = self._slot.get(key)
        if slot is not None and name:
            self._other[slot] = name
        elif slot is not None:
            self._other.pop(slot, None)

    def eviction(self, key: bytes) -> str:
        return self._other.get(self._slot[key], "")

    # ---- holds ----

    @property
    def held_count(self) -> int:
        return self._held

    @property
    def first_release_s(self) -> int:
        return self._first_release_s if self._held else NEVER_S

    def held(self, key: bytes) -> tuple[int, bool]:
        slot = self._slot.get(key, END)
        until_s = self._held_until_s[slot]
        return until_s, bool(until_s and self._held_though_read[slot])

    def hold(self, key: bytes, until_s: int, *, though_read: bool = False) -> None:
        slot = self._slot.get(key)
        if slot is None:
            return
        if not self._held:
            self._first_release_s = NEVER_S
        if not self._held_until_s[slot]:
            self._pass(slot)
            self._unlink(slot)
            self._last_use_s[slot] = NEVER_S
            self._held += 1
        self._held_until_s[slot] = until_s
        self._held_though_read[slot] = though_read
        self._first_release_s = min(self._first_release_s, until_s)

    def release(self, key: bytes, now_s: int) -> None:
        slot = self._slot.get(key)
        if slot is not None and self._held_until_s[slot]:
            self._put_back(slot, now_s)
            oldest = self._newer[END]
            if oldest != END and now_s < self._last_use_s[oldest]:
                self._link(slot, END, oldest)
            else:
                self._link(slot, self._older[END], END)

    def _put_back(self, slot: int, now_s: int) -> None:
        self._held_until_s[slot] = 0
        self._held -= 1
        self._last_use_s[slot] = now_s

    def release_due(self, until_s: int, now_s: int) -> None:
        if until_s < self.first_release_s:
            return
        first_s = NEVER_S
        for slot in self._slot.values():
            held_until_s = self._held_until_s[slot]
            if 0 < held_until_s <= until_s:
                self._put_back(slot, now_s)
                self._link(slot, END, self._newer[END])
            elif held_until_s:
                first_s = min(first_s, held_until_s)
        self._first_release_s = first_s


class LruOrder(_Slots):
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


MOST_SKIPPED: Final = 4096  # files that one call looks at in vain, at most


class SieveOrder(_Slots):
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
