"""How many bytes of this node's cache count against which quotas. Pure.

A quota of a path bounds the bytes that all nodes together have cached of what is below it. Each
node may have its share, by its weight among them, and refuses what would go beyond. What a fill was
promised counts until it is counted as cached, or nothing came of it; a little more than the quota
may be there for a moment, and is freed again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

Bounds = tuple[tuple[bytes, int], ...]  # (path, bytes of the quota)


class Quotas:
    """The quotas of a node; all its tiers count together. `share()`: this node's share."""

    def __init__(self, share: Callable[[], float] = lambda: 1.0) -> None:
        self._share = share
        self.used_bytes: Counter[bytes] = Counter()

    def limit_bytes(self, quota_bytes: int) -> int:
        return int(quota_bytes * self._share())


class Charges:
    """The charges of one tier against quotas, by content key."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._of: dict[bytes, tuple[Bounds, int]] = {}
        self._promised: dict[bytes, tuple[Bounds, int]] = {}

    def put(self, key: bytes, bounds: Bounds, size_bytes: int) -> None:
        """Charges the cached bytes of a content to these quotas, in place of its promised bytes."""
        self.drop(key)
        self._forget(key)
        if bounds:
            self._of[key] = bounds, size_bytes
            for path, _ in bounds:
                self._quotas.used_bytes[path] += size_bytes

    def drop(self, key: bytes) -> None:
        """It is cached no more, or counts against nothing."""
        self._uncharge(*self._of.pop(key, ((), 0)))

    def promise(self, key: bytes, bounds: Bounds, size_bytes: int) -> None:
        """Promises more bytes of a content."""
        before, promised_bytes = self._promised.get(key, (bounds, 0))
        self._promised[key] = before, promised_bytes + size_bytes
        for path, _ in before:
            self._quotas.used_bytes[path] += size_bytes

    def withdraw(self, key: bytes, size_bytes: int) -> None:
        """Takes back a part of what was promised to a content, if it is not counted as cached."""
        bounds, promised_bytes = self._promised.get(key, ((), 0))
        if size_bytes < promised_bytes:
            self._promised[key] = bounds, promised_bytes - size_bytes
            self._uncharge(bounds, size_bytes)
        else:
            self._forget(key)

    def promised(self) -> Iterable[bytes]:
        """Keys of what was promised something that is not counted as cached."""
        return self._promised.keys()

    def settle(self, keys: Iterable[bytes]) -> None:
        """Ends the promises of these contents: what arrived is counted."""
        for key in keys:
            self._forget(key)

    def _forget(self, key: bytes) -> None:
        self._uncharge(*self._promised.pop(key, ((), 0)))

    def _uncharge(self, bounds: Bounds, size_bytes: int) -> None:
        used_bytes = self._quotas.used_bytes
        for path, _ in bounds:
            used_bytes[path] -= size_bytes
            if used_bytes[path] <= 0:
                del used_bytes[path]

    def refuses(self, bounds: Bounds, size_bytes: int) -> bytes | None:
        """Returns the path whose quota has no room for the bytes; None: all have."""
        for path, quota_bytes in bounds:
            if self._used(path) + size_bytes > self._quotas.limit_bytes(quota_bytes):
                return path
        return None

    def use(self, path: bytes, quota_bytes: int) -> tuple[int, int]:
        """Bytes that count against a quota on this node, and how many may."""
        return self._used(path), self._quotas.limit_bytes(quota_bytes)

    def excess(self) -> dict[bytes, int]:
        """Returns the excess, in bytes, of each exceeded quota."""
        bounds = {bound for bounds, _ in self._of.values() for bound in bounds}
        over = {path: self._used(path) - self._quotas.limit_bytes(most) for path, most in bounds}
        return {path: size_bytes for path, size_bytes in over.items() if size_bytes > 0}

    def charged(self, path: bytes) -> Iterable[tuple[bytes, int]]:
        """(key, bytes) of what counts against the quota of a path."""
        for key, (bounds, size_bytes) in self._of.items():
            if any(one == path for one, _ in bounds):
                yield key, size_bytes

    def used(self) -> dict[bytes, int]:
        """Returns the bytes of this tier by path."""
        used: Counter[bytes] = Counter()
        for bounds, size_bytes in self._of.values():
            for path, _ in bounds:
                used[path] += size_bytes
        return dict(used)

    def __len__(self) -> int:
        return len(self._of)

    def _used(self, path: bytes) -> int:
        return self._quotas.used_bytes[path]
