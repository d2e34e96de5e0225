"""Which devices keep the inode numbers of their files."""

from __future__ import annotations

import errno

import pytest

from cachefs.core.mountinfo import Mount, Mounts
from connectors import inode_numbers
from connectors.inode_numbers import KNOWN_S, has_stable_inode_numbers

DEVICE = 0x2F  # 0:47


def test_a_device_number_that_another_mount_has_by_now_is_looked_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, kinds, reads = [100.0], ["nfs4"], list[str]()

    def read() -> Mounts:
        reads.append(kinds[0])
        return Mounts((Mount("0:47", "/", "/mnt", kinds[0], "x", ()),))

    monkeypatch.setattr(inode_numbers, "_keeps", {})
    monkeypatch.setattr(inode_numbers, "read_mounts", read)
    monkeypatch.setattr("connectors.inode_numbers.time.monotonic", lambda: now[0])
    for _ in range(1000):
        assert has_stable_inode_numbers(DEVICE)
    kinds[0] = "fuse.sshfs"
    now[0] += KNOWN_S
    for _ in range(1000):
        assert not has_stable_inode_numbers(DEVICE)
    assert reads == ["nfs4", "fuse.sshfs"]


def test_what_is_known_counts_while_the_mounts_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> Mounts:
        raise OSError(errno.EMFILE, "Too many open files")

    known = {DEVICE: inode_numbers._Known(is_stable=True, until_s=0.0)}
    monkeypatch.setattr(inode_numbers, "_keeps", known)
    monkeypatch.setattr(inode_numbers, "read_mounts", fail)
    assert has_stable_inode_numbers(DEVICE)
    with pytest.raises(OSError, match="Too many open files"):
        has_stable_inode_numbers(DEVICE + 1)
