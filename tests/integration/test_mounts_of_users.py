"""What users see of each other's mounts, and what root sees of all of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services.environment import environment_of
from tests.services.namespaces import with_fuse_device

CACHEFS = str(Path(sys.executable).parent / "cachefs")
NOBODY = 65534
AS_NOBODY = [
    "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
    "--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search",
]  # fmt: skip


class Shared:
    """A machine of root and of the user nobody: a mount namespace where both may open the device,
    and a state home each."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("home-0", f"home-{NOBODY}", "mnt", "source"):
            (root / name).mkdir()
        for name in (f"home-{NOBODY}", "mnt"):
            os.chown(root / name, NOBODY, NOBODY)
        root.chmod(0o755)
        (root / "source" / "a").write_bytes(b"a")
        os.mknod(root / "fuse", 0o020666, os.makedev(10, 229))
        os.chmod(root / "fuse", 0o666)
        command = with_fuse_device(root / "fuse", "sh", "-c", "echo && exec sleep 600")
        self._holder = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._holder.stdout is not None
        self._holder.stdout.readline()

    def run(self, uid: int, *arguments: str) -> subprocess.CompletedProcess[str]:
        user = AS_NOBODY if uid else []
        home = str(self.root / f"home-{uid}")
        return subprocess.run(
            ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", *user, CACHEFS, *arguments],
            env=environment_of(home),
            capture_output=True,
            text=True,
            timeout=60,
        )

    def trees(self, where: str, *options: str) -> list[dict[str, Any]]:
        """What root's `cachefs status` says of a mount point, among all that is mounted."""
        found = json.loads(self.run(0, "status", "--json", *options).stdout)
        return [tree for tree in found if tree["mountpoint"] == where]

    def close(self) -> None:
        self.run(0, "umount", "--lazy", str(self.root / "mnt"))
        self._holder.kill()
        self._holder.communicate()


@pytest.fixture
def shared() -> Iterator[Shared]:
    root = Path(tempfile.mkdtemp(prefix="cachefs-users-"))
    made = Shared(root)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(root)


def test_another_users_mount(shared: Shared) -> None:
    """Root's mount is named as root's to a user; the user's is seen and unmounted by root."""
    where = str(shared.root / "mnt")
    done = shared.run(0, "mount", f"file://{shared.root}/source", where)
    assert done.returncode == 0, done.stderr
    refused = shared.run(NOBODY, "umount", where)
    assert refused.returncode == 1
    assert f"{where}: it is a mount of user root" in refused.stderr
    assert "of user root" in shared.run(NOBODY, "status", where).stderr
    assert shared.run(0, "umount", where).returncode == 0

    done = shared.run(NOBODY, "mount", f"file://{shared.root}/source", where)
    assert done.returncode == 0, done.stderr
    home = str(shared.root / f"home-{NOBODY}" / ".cache" / "cachefs")
    (tree,) = shared.trees(where, "--home", home)
    assert tree["state"] == "ok"
    assert tree["client_log"].startswith(home)
    (tree,) = shared.trees(where)
    assert tree["state"] == "of user nobody, not recorded here"
    for refused in (
        shared.run(0, "mount", "--upgrade", where, "--home", home),
        shared.run(0, "cache", "rm", "--unused", "--home", home),
    ):
        assert refused.returncode == 1
        assert "of user nobody" in refused.stderr
        assert "sudo -H -u nobody cachefs" in refused.stderr
    assert shared.run(0, "logs", where, "--home", home).returncode == 0
    assert shared.run(0, "health", where, "--home", home).stdout == "OK, nothing is wrong\n"
    done = shared.run(0, "umount", where, "--home", home)
    assert (done.returncode, done.stdout) == (0, f"OK, {where} is unmounted\n"), done.stderr
    assert shared.trees(where) == []
