"""A doubly linked list of keys in arrays, some of them set aside for a time. Pure.

A key costs one dict entry and about 20 bytes in arrays: nodes of the list are numbers (slots), slot
0 is the list's end on both sides.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Final

NEVER_S: Final = (1 << 32) - 1  # last use of a free slot, so that it is never the oldest
END: Final = 0


class EvictionSlots:
    """Keys from the oldest to the newest. See `worker.tier.eviction_order.EvictionOrder`."""

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
        """Notes a use; of a subclass."""
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
        self._set_aside(slot, until_s, though_read=though_read)

    def _set_aside(self, slot: int, until_s: int, *, though_read: bool) -> None:
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
            self._put_in_place(slot, now_s)

    def _put_in_place(self, slot: int, now_s: int) -> None:
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

    def hold_all(self, keys: Iterable[bytes], until_s: int) -> list[bytes]:
        if not self._held:
            self._first_release_s = NEVER_S
        new: list[bytes] = []
        for key in keys:
            slot = self._slot.get(key, END)
            if self._held_until_s[slot] != until_s:
                new.append(key)
                if slot != END:
                    self._set_aside(slot, until_s, though_read=True)
        return new

    def release_all(self, keys: Iterable[bytes], until_s: int, now_s: int) -> list[bytes]:
        released: list[bytes] = []
        for key in keys:
            slot = self._slot.get(key, END)
            if slot != END and self._held_until_s[slot] == until_s:
                self._put_in_place(slot, now_s)
                released.append(key)
        return released

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
