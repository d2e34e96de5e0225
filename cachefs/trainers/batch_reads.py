"""Reads whole batches of a manifest's files: all at once from the node's server, which a process
that cannot connect to it replaces by reads through the mount, one by one."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Final

from cachefs.core.owned_fd import opened
from cachefs.library.api import tree
from cachefs.library.tree import Tree
from cachefs.trainers.manifest import Manifest

log = logging.getLogger(__name__)

_SPARE: Final = 1  # a read of one byte more than the size finds the end of the file


class BatchReads:
    """The reads of one data set; copies in other processes connect for themselves."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._tree: Tree | None = tree(manifest.path, home=str(manifest.home.path))
        self._is_found = False

    def read(self, indices: Sequence[int]) -> list[bytes]:
        """Returns the bytes of the files. Raises IndexError, and the OSError of the first file that
        cannot be read."""
        found = self._found()
        if found is None:
            return [self.read_one(index) for index in indices]
        return found.read_batch([self._manifest.relative(index) for index in indices])

    def read_one(self, index: int) -> bytes:
        """Returns the bytes of one file, read through the mount. Raises as `read`."""
        return read_whole(self._manifest.file(index), self._manifest.size(index))

    def _found(self) -> Tree | None:
        if self._tree is not None and not self._is_found:
            try:
                self._is_found = bool(self._tree.namespace)
            except OSError as err:  # not a mount of this user, or not a mount
                log.info("%s is read file by file: %s", self._manifest.path, err)
                self._tree = None
        return self._tree


def read_whole(path: bytes, size: int) -> bytes:
    """Returns a file's bytes, to its end even if `size` is wrong. Raises OSError with the path."""
    with opened(os.open, path, os.O_RDONLY | os.O_CLOEXEC) as file:
        fd = file.fileno()
        try:
            data = os.read(fd, size + _SPARE)
            while more := os.read(fd, 1 << 20) if len(data) != size else b"":
                data += more
        except OSError as err:
            raise OSError(err.errno, err.strerror, os.fsdecode(path)) from err
        return data
