"""The policy `view` on a real mount: a complete directory is covered without a command, shows a
change at the origin, and is uncovered when the policy ends."""

from __future__ import annotations

import json
from pathlib import Path

from cachefs.core.mountinfo import read_mounts
from tests.integration.conftest import Node
from tests.services.processes import wait_until
from worker.views.choice import LEAST_FILES

LIMIT_S = 60.0


def is_covered(mnt: Path) -> bool:
    mounts = read_mounts()
    mount = mounts.at(str(mnt))
    return mount is not None and bool(mounts.covers_of(mount))


def test_a_directory_is_covered_by_its_policy(node: Node, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "train").mkdir(parents=True)
    for number in range(LEAST_FILES):
        (source / "train" / f"f{number}").write_text(f"x{number}")
    mnt = node.mount(f"file://{source}", "--sync-interval", "2s", "--transport", "kernel")
    said = node.ok("policy", "set", mnt / "train", "view=auto", "sync_interval=2s")
    assert "view=auto" in said
    for number in range(LEAST_FILES):
        assert (mnt / "train" / f"f{number}").read_text() == f"x{number}"
    wait_until(lambda: is_covered(mnt), "the cover", LIMIT_S)
    (view,) = json.loads(node.ok("views", mnt, "--json"))
    assert (view["policy"], view["files"]) == ("auto", LEAST_FILES)
    assert "view=auto" in node.ok("views", mnt)
    assert "view=never" in node.fails("thaw", mnt / "train")
    (source / "train" / "f7").write_text("changed")
    wait_until(lambda: (mnt / "train" / "f7").read_text() == "changed", "the change", LIMIT_S)
    wait_until(lambda: is_covered(mnt), "the cover", LIMIT_S)  # the reader has it cached again
    node.ok("policy", "set", mnt / "train", "view=never")
    wait_until(lambda: not is_covered(mnt), "the end of the cover", LIMIT_S)
    assert (mnt / "train" / "f7").read_text() == "changed"
    wait_until(lambda: node.ok("views", mnt, "--json").strip() == "[]", "no view", LIMIT_S)
