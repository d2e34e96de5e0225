"""The mounts that show a tree, as far as they can be read."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cachefs.core import mount_namespaces
from cachefs.core.mountinfo import OWN, Mount, Mounts
from worker.views.tree_mounts import TreeMounts, TreeShown

TREE = 0x1234
SHOWN = Mount("8:1", f"/tier/views/{TREE:016x}", "/mnt", "ext4", "/dev/sda1", ())


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the read of the mounts of another mount namespace gives: mounts, or an error."""
    found: list[Any] = [()]

    def read(path: Path = OWN) -> Mounts:
        mounts: Sequence[Mount] | OSError = found[0] if path != OWN else ()
        if isinstance(mounts, OSError):
            raise mounts
        return Mounts(mounts)

    def readlink(path: str) -> str:
        return {
            "/proc/self/ns/mnt": "mnt:[1]",
            "/proc/self/ns/pid": mount_namespaces._FIRST_PIDS,
            "/proc/2/ns/mnt": "mnt:[2]",
            "/proc/2/root": "/",
        }[path]

    monkeypatch.setattr(mount_namespaces, "read_mounts", read)
    monkeypatch.setattr(os, "readlink", readlink)
    monkeypatch.setattr(os, "listdir", lambda path: ["2", "meminfo"])
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return found


def look() -> TreeShown:
    return asyncio.run(TreeMounts().look(TREE))


def test_a_tree_is_looked_for_in_other_mount_namespaces(others: list[Any]) -> None:
    assert look() is TreeShown.NOWHERE
    others[0] = (SHOWN,)
    assert look() is TreeShown.SOMEWHERE
    others[0] = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    assert look() is TreeShown.NOWHERE, "its process has ended"


def test_mounts_that_cannot_be_read_for_want_of_descriptors_are_unknown(
    others: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Else a tree would be changed beneath a cover."""
    others[0] = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    assert look() is TreeShown.UNKNOWN
    asyncio.run(TreeMounts().remove(TREE))
    assert caplog.text.count("Too many open files") == 2
