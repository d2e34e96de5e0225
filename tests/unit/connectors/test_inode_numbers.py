"""Which devices keep the inode numbers of their files."""

from __future__ import annotations

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
