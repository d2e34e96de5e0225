"""Keys that a file system cannot show, through a real mount."""

from __future__ import annotations

import os
from pathlib import Path

from tests.integration.conftest import Bucket, Node
from tests.integration.dataset import digests
from tests.services.s3_server import S3Server


def test_hidden_keys_are_counted_and_the_rest_reads(node: Node, moto: S3Server) -> None:
    """[S-hidden-keys] [S-directories] [S-names] Odd keys hide, markers make directories, a
    directory wins over an object of its name; nothing of it is an error."""
    bucket = Bucket(moto, "odd-keys")
    node.environment.update(moto.credentials())
    shown = {
        "plain": b"1",
        "both/inside": b"2",
        "dir/läs  mig": b"3",
        "dir/100%+#?": b"4",
    }
    hidden = ["a//b", "/leading", "dir/../up", "x/./y", "both", "dir/" + "n" * 256]
    bucket.fill(shown)
    for key in hidden:
        bucket.put(key, b"hidden")
    bucket.put("empty/", b"")
    mounted = node.mount(bucket.url, *bucket.options)
    assert digests(mounted).keys() == shown.keys()
    for name, data in shown.items():
        assert (mounted / name).read_bytes() == data
    assert (mounted / "both").is_dir()
    assert os.listdir(mounted / "empty") == []
    for name in ("a", "x", "dir"):  # above the first bad segment
        assert (mounted / name).is_dir()
    source = node.status(mounted)["sources"][0]
    assert source["hidden_keys"] == len(hidden)
    node.umount(mounted)


def test_symlinks_of_a_file_source(node: Node, tmp_path: Path) -> None:
    """[S-symlinks] Links are links; a relative target stays inside the mount."""
    source = tmp_path / "source"
    (source / "dir").mkdir(parents=True)
    (source / "dir/file").write_bytes(b"target")
    (source / "link").symlink_to("dir/file")
    (source / "dir/file").chmod(0o640)
    mounted = node.mount(f"file://{source}")
    assert os.readlink(mounted / "link") == "dir/file"
    assert (mounted / "link").read_bytes() == b"target"
    assert (mounted / "dir/file").stat().st_mode & 0o777 == 0o640
    node.umount(mounted)
