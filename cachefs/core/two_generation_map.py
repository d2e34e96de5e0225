"""A bounded map with approximate LRU eviction."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TwoGenerationMap(Generic[K, V]):
    """A map of at most `limit` items with approximate LRU eviction. Used items move to the young
    half. When that is full, the old half is dropped and the young half takes its place. An item
    costs a dict entry only, no list links."""

    __slots__ = ("_half", "_old", "_young")

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def __len__(self) -> int:
        return len(self._young) + sum(1 for key in self._old if key not in self._young)

    def __bool__(self) -> bool:
        return bool(self._young or self._old)

    def get(self, key: K) -> V | None:
        value = self._young.get(key)
        if value is None:
            value = self._old.pop(key, None)
            if value is not None:
                self.put(key, value)
        return value

    def put(self, key: K, value: V) -> None:
        if len(self._young) >= self._half and key not in self._young:
            self._old, self._young = self._young, {}
        self._young[key] = value

    def put_all(self, items: dict[K, V]) -> None:
        """Puts several items; keeps the limit if they are at most half of it."""
        if len(self._young) + len(items) > self._half:
            self._old, self._young = self._young, {}
        self._young.update(items)

    def peek(self, key: K) -> V | None:
        """Returns the same as `get`, without counting it as a use."""
        value = self._young.get(key)
        return self._old.get(key) if value is None else value

    def drop(self, key: K) -> None:
        self._young.pop(key, None)
        self._old.pop(key, None)

    def clear(self) -> None:
        self._young.clear()
        self._old.clear()

    def keys(self) -> list[K]:
        return [*self._young, *self._old]

    def change_all(self, change: Callable[[V], V]) -> None:
        for half in (self._young, self._old):
            for key, value in half.items():
                half[key] = change(value)
