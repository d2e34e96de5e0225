"""Clients that follow others of their mount are counted, and not those that connect again."""

from __future__ import annotations

from worker.server.takeovers import MOST_MOUNTS, Takeovers


def test_another_process_is_counted_and_a_new_connection_is_not() -> None:
    seen = Takeovers()
    seen.joined("/m", 1)
    assert seen.counts == {"/m": 0}
    seen.left("/m", 1, is_followed=True)
    seen.joined("/m", 1)
    assert seen.counts == {"/m": 0}
    seen.left("/m", 1, is_followed=True)
    seen.joined("/m", 2)
    assert seen.counts == {"/m": 1}


def test_an_upgrade_connects_before_the_former_client_leaves() -> None:
    seen = Takeovers()
    seen.joined("/m", 1)
    seen.joined("/m", 2)
    seen.left("/m", 1, is_followed=False)
    assert seen.counts == {"/m": 1}


def test_a_mount_that_ended_is_forgotten() -> None:
    seen = Takeovers()
    seen.joined("/m", 1)
    seen.left("/m", 1, is_followed=False)
    assert seen.counts == {}
    seen.joined("/m", 2)
    assert seen.counts == {"/m": 0}


def test_the_mounts_are_bounded() -> None:
    seen = Takeovers()
    for number in range(MOST_MOUNTS + 5):
        seen.joined(f"/{number}", number + 1)
    assert len(seen.counts) == MOST_MOUNTS
    assert "/0" not in seen.counts
