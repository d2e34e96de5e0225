"""What the reconciler removes, and the mounts among which it counts users."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from cachefs.core.mountinfo import Mounts, parse_mountinfo
from cachefs.csi.leftovers import Drop, Leftovers, Snapshot, Unmount, keys_of, users
from cachefs.launcher.state import mount_id

DIRECTORY = "/k/plugins/csi.cachefs.io/mounts"
A, B = f"{DIRECTORY}/a", f"{DIRECTORY}/b"
KEY_A, KEY_B = f"{mount_id(A)}.01", f"{mount_id(B)}.02"
LINGER_S = 60.0
INFO = rb"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:50 / /k/plugins/csi.cachefs.io/mounts/a ro shared:2 - fuse.cachefs cachefs://m:1/a ro
31 22 0:50 / /k/pods/1/mount ro shared:2 - fuse.cachefs cachefs://m:1/a ro
32 22 0:51 / /k/pods/x\040y/mount ro - tmpfs tmpfs ro
33 22 0:52 / /k/pods/x\040y/mount ro - fuse.cachefs cachefs://m:1/b ro
"""


def snapshot(
    shared: Mapping[str, str] = {A: "0:50"},
    users: Mapping[str, int] = {},
    entries: Mapping[str, str] | None = {KEY_A: "0:50"},
    devices: frozenset[str] = frozenset({"0:50"}),
) -> Snapshot:
    return Snapshot(shared, users, devices, entries)


def removed(*snapshots: Snapshot) -> list[list[Unmount | Drop]]:
    """Returns what is removed at each of the snapshots, which are `LINGER_S` apart."""
    leftovers = Leftovers(LINGER_S)
    return [leftovers.handle(each, n * LINGER_S) for n, each in enumerate(snapshots)]


def test_an_unused_mount_is_removed_after_the_linger() -> None:
    leftovers = Leftovers(LINGER_S)
    assert leftovers.handle(snapshot(), 0.0) == []
    assert leftovers.handle(snapshot(), LINGER_S - 0.1) == []
    assert leftovers.handle(snapshot(), LINGER_S) == [Unmount(A, "0:50")]
    assert leftovers.handle(snapshot(), LINGER_S + 5) == [Unmount(A, "0:50")]  # it failed


def test_a_use_starts_the_linger_again() -> None:
    used = snapshot(users={"0:50": 1})
    assert removed(snapshot(), used, snapshot(), snapshot()) == [[], [], [], [Unmount(A, "0:50")]]


def test_a_mount_made_anew_is_another_one() -> None:
    anew = snapshot({A: "0:60"}, entries={}, devices=frozenset({"0:60"}))
    assert removed(snapshot(), anew) == [[], []]


@pytest.mark.parametrize(
    ("entries", "dropped"),
    [
        ({KEY_A: "0:50"}, []),
        ({KEY_A: "0:49"}, [KEY_A]),  # an earlier mount at the same place
        ({KEY_B: "0:50"}, [KEY_B]),  # the kernel gave its device to another mount
        ({KEY_B: "0:51"}, [KEY_B]),
        ({KEY_B: "0:77"}, []),  # its shared mount has gone; a pod has a bind
        ({KEY_A: "", KEY_B: ""}, [KEY_B]),  # deposits of another version
    ],
)
def test_a_deposit_without_a_mount_is_dropped(entries: dict[str, str], dropped: list[str]) -> None:
    one = snapshot(users={"0:50": 1}, entries=entries, devices=frozenset({"0:50", "0:77"}))
    assert removed(one, one) == [[], [Drop(key) for key in dropped]]


def test_without_a_holder_nothing_is_dropped() -> None:
    stray, away = snapshot({}, entries={KEY_B: "0:9"}), snapshot({}, entries=None)
    assert removed(stray, away, stray, stray) == [[], [], [], [Drop(KEY_B)]]


def test_keys_belong_to_a_place() -> None:
    assert keys_of(A, {KEY_A: "", KEY_B: ""}) == [KEY_A]


def test_shared_mounts_and_their_users_are_found_among_all_mounts() -> None:
    mounts = Mounts(parse_mountinfo(INFO))
    assert users(mounts, "0:50", DIRECTORY) == users(mounts, "0:51", DIRECTORY) == 1
    found = Snapshot.of(mounts, DIRECTORY, {})
    assert found == snapshot({A: "0:50"}, {"0:50": 1}, {}, frozenset({"0:50", "0:52"}))
