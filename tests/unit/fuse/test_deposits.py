"""The calls to the holder."""

from __future__ import annotations

import errno
import os

import pytest

from cachefs.core.errors import Unreachable
from cachefs.fuse import deposits


def test_a_process_without_a_free_descriptor_does_not_reach_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Agents and supervisors try again after Unreachable; another error would end them."""

    def connect(path: str) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(deposits, "connect_socket", connect)
    with pytest.raises(Unreachable, match="Too many open files"):
        deposits.HolderClient("/holder.sock")
