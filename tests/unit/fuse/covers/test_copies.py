"""The replacement of bind mounts that showed a removed cover."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachefs.core import mount_namespaces
from cachefs.core.mount_namespaces import MountNamespace
from cachefs.core.mountinfo import Mount, Mounts
from cachefs.fuse.covers import copies, mount_calls


def test_a_call_that_is_late_attaches_the_clone_that_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of a bind mount may lead through a file system that hangs for a while."""
    go, attached = threading.Event(), list[int]()

    @contextlib.contextmanager
    def hanging(bind: Mount, proc: int) -> Iterator[int]:
        assert go.wait(10)
        yield -1

    def attach(made: int, root: int, *, beneath: bool) -> None:
        attached.append(os.fstat(made).st_ino)

    monkeypatch.setattr(mount_namespaces, "CALL_S", 0.01)
    monkeypatch.setattr(copies, "opened_root", hanging)
    monkeypatch.setattr(copies, "detach", lambda root, proc: None)
    monkeypatch.setattr(mount_calls, "attach", attach)
    clone, next_one = tmp_path / "clone", tmp_path / "next"
    clone.touch()
    next_one.touch()
    made = os.open(clone, os.O_PATH)
    namespace = MountNamespace(os.getpid(), True, Mounts([]))
    bind = Mount("8:1", "/views/1", "/volume", "ext4", "/dev/sda", ())

    assert not copies._replace(namespace, bind, b"", lambda below, flags: made)
    after = os.open(next_one, os.O_PATH)
    go.set()
    for thread in threading.enumerate():
        if thread.name == "mount-namespace":
            thread.join(10)
    assert attached == [clone.stat().st_ino]
    os.close(after)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(made)
