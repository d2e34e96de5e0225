"""Options of fstab(5) that the kernel applies: they hold for the mount, or the mount is refused."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import Node, open_mountinfo

HELPER = Path(sys.executable).parent / "mount.cachefs"


def script(tmp_path: Path) -> Path:
    """A source with a program in it."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "run").write_text("#!/bin/sh\nexit 7\n")
    (source / "run").chmod(0o755)
    return source


def mount(node: Node, source: Path, options: str) -> subprocess.CompletedProcess[str]:
    node.mountpoints.append(node.mountpoint())
    return subprocess.run(
        [HELPER, f"file://{source}", node.mountpoint(), "-o", options],
        env=node.environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def shown(mountpoint: Path) -> set[str]:
    """The flags of a mount, as the kernel shows them."""
    lines = [line.split() for line in open_mountinfo()]
    return next(set(f[5].split(",")) for f in lines if f[4] == str(mountpoint))


@pytest.mark.parametrize("transport", ["kernel", "pyfuse3"])
def test_a_program_on_a_noexec_mount_is_not_executed(
    node: Node, tmp_path: Path, transport: str
) -> None:
    """[S-options] `noexec` and its like are the kernel's to apply, and reach it."""
    source = script(tmp_path)
    done = mount(node, source, f"user,noatime,dirsync,transport={transport}")
    assert done.returncode == 0, done.stderr
    program = node.mountpoint() / "run"
    with pytest.raises(PermissionError) as caught:
        subprocess.run([program], check=False)
    assert caught.value.errno == errno.EACCES
    assert {"ro", "nosuid", "nodev", "noexec", "noatime"} <= shown(node.mountpoint())
    node.umount(node.mountpoint())


def test_a_program_on_another_mount_is_executed(node: Node, tmp_path: Path) -> None:
    done = mount(node, script(tmp_path), "noexec,exec,transport=kernel")
    assert done.returncode == 0, done.stderr
    assert subprocess.run([node.mountpoint() / "run"], check=False).returncode == 7
    assert "noexec" not in shown(node.mountpoint())
    node.umount(node.mountpoint())


def test_a_context_that_cannot_be_set_is_refused(node: Node, tmp_path: Path) -> None:
    """[S-options] One line that names the option, and nothing is mounted."""
    assert not Path("/sys/fs/selinux/status").exists(), "this test is for kernels without SELinux"
    done = mount(node, script(tmp_path), 'context="system_u:object_r:tmp_t:s0:c1,c2"')
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert "-o context: SELinux is not enabled" in done.stderr
    assert not any(str(node.mountpoint()) in line for line in open_mountinfo())
