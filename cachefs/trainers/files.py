"""The files of a manifest as a map-style data set: bytes, or what `decode` makes of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final

from cachefs.trainers.manifest import Manifest

_SPARE: Final = 1  # a read of one byte more than the size finds the end of the file


def as_they_are(data: bytes) -> bytes:
    """Returns the bytes of a file."""
    return data


class Files:
    """A data set for `torch.utils.data`: item i is file i of the manifest, decoded; with `labels`
    the pair of it and its class. Each error names its file."""

    def __init__(
        self,
        manifest: Manifest,
        decode: Callable[[bytes], Any] = as_they_are,
        *,
        labels: bool = False,
    ) -> None:
        self.manifest = manifest
        self._decode = decode
        self._labels = labels

    def __len__(self) -> int:
        return len(self.manifest)

    def __getitem__(self, index: int) -> Any:
        """Returns one item. Raises IndexError, and OSError as `open` and `read`."""
        return self._item(index, read_whole(self.manifest.file(index), self.manifest.size(index)))

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Returns the items of a batch, which are read at once. Raises as `__getitem__`."""
        return [self[index] for index in indices]

    def _item(self, index: int, data: bytes) -> Any:
        item = self._decode(data)
        return (item, self.manifest.label(index)) if self._labels else item


def read_whole(path: bytes, size: int) -> bytes:
    """Returns a file's bytes, to its end even if `size` is wrong. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(fd, size + _SPARE)
        while more := os.read(fd, 1 << 20) if len(data) != size else b"":
            data += more
        return data
    finally:
        os.close(fd)
