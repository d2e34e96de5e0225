"""Directories of shared mounts: what a killed driver left is removed, and nothing else."""

from __future__ import annotations

from pathlib import Path

from cachefs.csi.shared_mounts import Node, SharedMounts


def test_directories_without_a_mount_are_removed(tmp_path: Path) -> None:
    node = Node(str(tmp_path), str(tmp_path / "holder.sock"))
    mounts = SharedMounts(node)
    left, foreign = Path(node.mounts_dir) / "left", Path(node.mounts_dir) / "foreign"
    left.mkdir()
    foreign.mkdir()
    (foreign / "file").write_text("of an administrator")
    mounts.remove_empty_places()
    assert not left.exists()
    assert (foreign / "file").exists()
