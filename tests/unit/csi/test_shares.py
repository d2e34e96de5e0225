"""What one namespace takes of a node: its mounts, and its places among waiting publishes."""

from __future__ import annotations

import contextlib

import pytest

from cachefs.core.errors import Throttled, Unreachable
from cachefs.csi import shares
from cachefs.csi.shares import MOST_MOUNTS, UNKNOWN, MountShares, Places, Use


def claim_all(found: MountShares, namespace: str = "greedy") -> None:
    for number in range(MOST_MOUNTS):
        found.claim(Use(f"/{namespace}/{number}", namespace, f"mount-{number}"))


def test_a_namespace_has_a_bounded_number_of_mounts() -> None:
    found = MountShares()
    claim_all(found)
    with pytest.raises(Throttled, match="the namespace greedy"):
        found.claim(Use("/greedy/more", "greedy", "another"))
    found.claim(Use("/greedy/shared", "greedy", "mount-0"))
    found.claim(Use("/other/0", "other", "another"))
    found.note(Use("/greedy/of-a-former-driver", "greedy", "another"))


def test_a_volume_that_ends_gives_its_place_back() -> None:
    found = MountShares()
    claim_all(found)
    found.end("/greedy/0")
    found.end("/greedy/0")
    found.claim(Use("/greedy/more", "greedy", "another"))


def test_a_volume_that_the_kubelet_has_forgotten_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = MountShares()
    claim_all(found)
    now = shares.time.monotonic()
    monkeypatch.setattr(shares.time, "monotonic", lambda: now + shares.KNOWN_S + 1.0)
    found.claim(Use("/greedy/more", "greedy", "another"))


def test_volumes_of_an_unknown_namespace_are_not_bounded() -> None:
    found = MountShares()
    claim_all(found, UNKNOWN)
    found.claim(Use("/more", UNKNOWN, "another"))


def test_a_namespace_takes_half_of_the_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "TURN_S", 0.0)
    places = Places(4)
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(places.taken("greedy"))
        with pytest.raises(Unreachable), places.taken("greedy"):
            pass
        for name in ("other", UNKNOWN):
            stack.enter_context(places.taken(name))
        with pytest.raises(Unreachable), places.taken("third"):
            pass
    with places.taken("greedy"), places.taken("greedy"):
        pass
