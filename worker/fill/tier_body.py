"""A body with pages of another tier of this node: they count as moved, not as fetched."""

from __future__ import annotations

from collections.abc import Iterator


class TierBody:
    """Base of these bodies (`worker.fill.source.SourceBody`). `from_tier`: whether the last chunk
    is of a tier of this node."""

    def __init__(self) -> None:
        self.from_tier = False
        self._checksum: int | None = None

    @property
    def from_peer(self) -> bool:
        return False

    @property
    def checksum(self) -> int | None:
        return self._checksum

    def __iter__(self) -> Iterator[memoryview]:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError
