"""overlayfs above a mount, and below its cache directory: the kernel stacks two file systems, and
the mount declares at INIT which of both it leaves room for."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import Node
from tests.integration.test_covers import KILLED
from tests.services.processes import is_running, wait_until

LARGE = os.urandom(3 << 20)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    (source / "d" / "small").write_text("from the origin")
    (source / "large").write_bytes(LARGE)
    return source


class Overlay:
    """An overlayfs whose upper directory is on a tmpfs at `root`."""

    def __init__(self, root: Path, lower: Path) -> None:
        self.merged = root / "merged"
        self._options = f"lowerdir={lower},upperdir={root / 'upper'},workdir={root / 'work'}"
        for name in ("merged", "upper", "work"):
            (root / name).mkdir()

    def mount(self) -> None:
        options = ("-t", "overlay", "overlay", "-o", self._options)
        subprocess.run(["mount", *options, self.merged], check=True)

    def umount(self) -> None:
        subprocess.run(["umount", self.merged], check=True)


@contextlib.contextmanager
def overlay(root: Path, lower: Path) -> Iterator[Overlay]:
    root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", root], check=True)
    try:
        made = Overlay(root, lower)
        made.mount()
        try:
            yield made
        finally:
            made.umount()
    finally:
        subprocess.run(["umount", root], check=True)


def kill_client(node: Node, mnt: Path) -> None:
    node.allowed_log.append(KILLED)
    (client,) = [one["pid"] for one in node.processes(mnt) if one["role"] == "client"]
    os.kill(client, signal.SIGKILL)
    wait_until(lambda: not is_running(client), "the end of the client")


def bytes_or_stale(path: Path) -> bytes | None:
    """None for ESTALE: overlayfs keeps names that the kernel distrusts."""
    try:
        return path.read_bytes()
    except OSError as err:
        if err.errno != errno.ESTALE:
            raise
        return None


def test_a_writable_overlay_of_a_mount(node: Node, source: Path, tmp_path: Path) -> None:
    """[S-overlay] Cold, warm, and after the death of the client."""
    mnt = node.mount(f"file://{source}", "--transport", "kernel")
    with overlay(tmp_path / "overlay", mnt) as over:
        merged = over.merged
        assert (merged / "large").read_bytes() == LARGE
        assert (merged / "large").read_bytes() == LARGE
        (merged / "d" / "small").write_text("of the user")
        (merged / "d" / "new").write_text("new")
        kill_client(node, mnt)
        assert bytes_or_stale(merged / "large") in (LARGE, None)
        assert bytes_or_stale(merged / "d" / "small") in (b"of the user", None)
        over.umount()
        over.mount()
        assert (merged / "large").read_bytes() == LARGE
        assert (merged / "d" / "small").read_text() == "of the user"
        assert sorted(path.name for path in (merged / "d").iterdir()) == ["new", "small"]
    assert (mnt / "d" / "small").read_text() == "from the origin"
    assert sorted(path.name for path in (source / "d").iterdir()) == ["small"]


def test_a_cache_directory_on_an_overlay(node: Node, source: Path, tmp_path: Path) -> None:
    """[S-overlay] The kernel reads complete files itself."""
    lower = tmp_path / "lower"
    lower.mkdir()
    with overlay(tmp_path / "overlay", lower) as over:
        cache = over.merged / "cache"
        mnt = node.mount(f"file://{source}", "--transport", "kernel", "--cache-dir", cache)
        assert (mnt / "large").read_bytes() == LARGE
        assert (mnt / "large").read_bytes() == LARGE
        assert "passthrough: yes" in node.ok("status", mnt)
        node.umount(mnt)
