"""The files of a manifest as a map-style data set: bytes, or what `decode` makes of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from cachefs.trainers.batch_reads import BatchReads
from cachefs.trainers.manifest import Manifest


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
        self._reads = BatchReads(manifest)

    def __len__(self) -> int:
        return len(self.manifest)

    def __getitem__(self, index: int) -> Any:
        """Returns one item. Raises IndexError, and OSError as `open` and `read`."""
        return self._item(index, self._reads.read_one(index))

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Returns the items of a batch, which are read at once. Raises as `__getitem__`."""
        bodies = self._reads.read(indices)
        return [self._item(index, data) for index, data in zip(indices, bodies, strict=True)]

    def _item(self, index: int, data: bytes) -> Any:
        try:
            item = self._decode(data)
        except Exception as err:  # torch prints notes, also of errors in loader processes
            name = os.fsdecode(self.manifest.file(index))
            err.add_note(f"while decoding {name!r} (file {index} of the manifest)")
            raise
        return (item, self.manifest.label(index)) if self._labels else item
