"""The policy `view` on a real mount: a complete directory in use is covered without a command,
shows a change at the origin, and is uncovered when nothing uses it or the policy ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cachefs.core.mountinfo import read_mounts
from cachefs.core.policies import VIEW_LEAST_FILES
from tests.integration.conftest import Node
from tests.integration.test_covers import KILLED, device_in, namespace
from tests.services.processes import is_running, wait_until

LIMIT_S = 60.0
INTERVAL_S = 2.0
READER = 'while cat "$0"/f1 "$0"/f2 > /dev/null; do sleep 0.2; done'


def is_covered(mnt: Path) -> bool:
    mounts = read_mounts()
    mount = mounts.at(str(mnt))
    return mount is not None and bool(mounts.covers_of(mount))


def views(node: Node, mnt: Path) -> dict[str, Any]:
    found: dict[str, Any] = node.status(mnt)["views"]
    return found


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "source" / "train"
    directory.mkdir(parents=True)
    for number in range(VIEW_LEAST_FILES):
        (directory / f"f{number}").write_text(f"x{number}")
    return directory.parent


@pytest.fixture
def mnt(node: Node, source: Path) -> Path:
    """A mount with all files cached, and the default policy."""
    mnt = node.mount(f"file://{source}", "--sync-interval", "2s", "--transport", "kernel")
    node.ok("policy", "set", mnt, f"sync_interval={INTERVAL_S:g}s")
    for number in range(VIEW_LEAST_FILES):
        assert (mnt / "train" / f"f{number}").read_text() == f"x{number}"
    return mnt


@contextlib.contextmanager
def in_use(directory: Path, pid: int = 0) -> Iterator[None]:
    """Files of a directory are opened again and again, among the mounts of a process."""
    among = ["nsenter", "-t", str(pid), "-m"] if pid else []
    with subprocess.Popen([*among, "sh", "-c", READER, str(directory)]) as reader:
        try:
            yield
            assert reader.poll() is None
        finally:
            reader.kill()


def test_a_directory_in_use_is_covered_by_default(node: Node, mnt: Path, source: Path) -> None:
    """[S-views-policy]"""
    assert ["view", "auto", "default"] in [
        line.split() for line in node.ok("policy", "show", mnt / "train").splitlines()
    ]
    with in_use(mnt / "train"):
        wait_until(lambda: is_covered(mnt), "the cover", LIMIT_S)
        (view,) = json.loads(node.ok("views", mnt, "--json"))
        assert (view["policy"], view["files"]) == ("auto", VIEW_LEAST_FILES)
        assert "view=auto" in node.ok("views", mnt)
        assert "view=never" in node.fails("thaw", mnt)
        (source / "train" / "f7").write_text("changed")
        wait_until(lambda: (mnt / "train" / "f7").read_text() == "changed", "the change", LIMIT_S)
        wait_until(lambda: is_covered(mnt), "the cover", LIMIT_S)  # the reader has it cached again
        node.ok("policy", "set", mnt, "view=never")
        wait_until(lambda: not is_covered(mnt), "the end of the cover", LIMIT_S)
        assert (mnt / "train" / "f7").read_text() == "changed"
        wait_until(lambda: node.ok("views", mnt, "--json").strip() == "[]", "no view", LIMIT_S)


def test_a_cover_without_readers_goes(node: Node, mnt: Path, source: Path) -> None:
    """[S-views-unused]"""
    with in_use(mnt / "train"):
        wait_until(lambda: is_covered(mnt), "the cover", LIMIT_S)
    wait_until(lambda: not is_covered(mnt), "the end of the cover", LIMIT_S)
    (source / "train" / "f7").write_text("changed")
    wait_until(
        lambda: (mnt / "train" / "f7").read_text() == "changed", "the change", INTERVAL_S + 10
    )
    assert not is_covered(mnt)
    wait_until(lambda: not views(node, mnt)["rows"], "the end of the view", LIMIT_S)
    assert views(node, mnt)["uncovers"] == {"unused": 1}


def test_a_reader_in_another_mount_namespace_is_a_use(node: Node, mnt: Path) -> None:
    """A container that was started while the directory was covered has a copy of the cover."""
    file = mnt / "train" / "f1"
    with contextlib.ExitStack() as at_first:
        at_first.enter_context(in_use(mnt / "train"))
        wait_until(lambda: is_covered(mnt), "the cover", LIMIT_S)
        with namespace("private", mnt) as apart:
            covered = device_in(apart, file)
            with in_use(mnt / "train", apart):
                at_first.close()
                until_s = views(node, mnt)["covered_s"] + 4 * INTERVAL_S
                wait_until(
                    lambda: views(node, mnt)["covered_s"] >= until_s, "four intervals", LIMIT_S
                )
                assert views(node, mnt)["uncovers"] == {}
                assert device_in(apart, file) == covered
            wait_until(lambda: not is_covered(mnt), "the end of the cover", LIMIT_S)
            # Copies in other namespaces are removed after the cover itself.
            wait_until(lambda: device_in(apart, file) != covered, "the end of the copy", LIMIT_S)
    wait_until(lambda: bool(views(node, mnt)["uncovers"]), "the count", LIMIT_S)
    assert views(node, mnt)["uncovers"] == {"unused": 1}


def test_use_is_seen_after_the_server_was_killed(node: Node, mnt: Path) -> None:
    node.allowed_log.append(KILLED)
    with in_use(mnt / "train"):
        wait_until(lambda: is_covered(mnt), "the cover", LIMIT_S)
        (pid,) = [one["pid"] for one in node.processes(mnt) if one["role"] == "server"]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not is_running(pid), "the end of the server")
        wait_until(lambda: views(node, mnt)["covered_s"] > 4 * INTERVAL_S, "intervals", LIMIT_S)
        assert views(node, mnt)["uncovers"] == {}
    wait_until(lambda: not is_covered(mnt), "the end of the cover", LIMIT_S)
    wait_until(lambda: bool(views(node, mnt)["uncovers"]), "the count", LIMIT_S)
    assert views(node, mnt)["uncovers"] == {"unused": 1}
