"""When a lookup is worth a stat and when a listing; what is remembered of absent names; whom a down
origin is asked by."""

from __future__ import annotations

import pytest

from cachefs.core.errors import AccessDenied, CacheFSError, DeadlineExceeded, Throttled, Unreachable
from master.state import lookups, negatives
from master.state.health import PROBE_EVERY_S, WARN_EVERY_S, OriginHealth, is_down
from master.state.lookups import LookupPolicy
from master.state.negatives import Negatives

NOW = 1_700_000_000.0


@pytest.mark.parametrize("interval_s", [-1.0, 60.0])
def test_the_third_lookup_in_a_window_lists(interval_s: float) -> None:
    policy = LookupPolicy()
    assert [policy.wants_listing(5, interval_s, NOW) for _ in range(4)] == [
        False,
        False,
        True,
        True,
    ]
    assert not policy.wants_listing(6, interval_s, NOW), "directories are counted apart"


def test_an_interval_of_zero_never_lists() -> None:
    policy = LookupPolicy()
    assert not any(policy.wants_listing(5, 0.0, NOW) for _ in range(10))


def test_a_new_window_begins_after_the_interval_and_when_the_clock_is_set_back() -> None:
    for later in (NOW + 10.0, NOW - 1.0):
        policy = LookupPolicy()
        assert [policy.wants_listing(5, 10.0, NOW) for _ in range(3)][-1]
        assert not policy.wants_listing(5, 10.0, later)


def test_a_refused_listing_leaves_stats_until_the_window_ends() -> None:
    policy = LookupPolicy()
    for _ in range(3):
        policy.wants_listing(5, 10.0, NOW)
    policy.listing_refused(5, 10.0, NOW)
    assert not any(policy.wants_listing(5, 10.0, NOW + 5) for _ in range(5))
    assert [policy.wants_listing(5, 10.0, NOW + 11) for _ in range(3)][-1]


def test_the_policy_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "MAX_DIRECTORIES", 3)
    policy = LookupPolicy()
    for directory in range(10):
        policy.wants_listing(directory, 60.0, NOW)
    assert len(policy._windows) == 3


def test_negatives_are_remembered_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(negatives, "MAX_NAMES", 4)
    absent = Negatives()
    for n in range(4):
        absent.add(n % 2, b"n%d" % n, NOW + n)
    absent.add(1, b"new", NOW)
    assert len(absent) == 4
    assert absent.checked_at(0, b"n0") == 0.0, "the longest unused directory makes room"
    assert absent.checked_at(1, b"n3") == NOW + 3
    absent.discard(1, b"n3")
    assert absent.names(1) == {b"n1", b"new"}
    absent.forget(1)
    assert len(absent) == 1


@pytest.mark.parametrize(
    ("error", "down"),
    [
        (Unreachable("x"), True),
        (Throttled("x"), True),
        (DeadlineExceeded("x"), True),
        (AccessDenied("x"), False),
    ],
)
def test_which_errors_mean_that_an_origin_is_down(error: CacheFSError, down: bool) -> None:
    health = OriginHealth()
    health.failed(error, NOW)
    assert is_down(error) == health.down == down
    assert health.errors == 1


def test_a_down_origin_is_probed_by_one_caller_at_a_time() -> None:
    health = OriginHealth()
    assert not health.may_probe(NOW), "nothing to probe while it is up"
    health.failed(Unreachable("x"), NOW)
    assert not health.may_probe(NOW + 1)
    assert health.may_probe(NOW + PROBE_EVERY_S)
    assert not health.may_probe(NOW + PROBE_EVERY_S + 1)
    health.succeeded()
    assert not health.down


def test_warnings_are_rare_but_the_last_one_is_kept() -> None:
    health = OriginHealth()
    assert health.warning("first", NOW) == "first"
    assert health.warning("second", NOW + 1) == ""
    assert health.last_warning == "second"
    assert health.warning("third", NOW + WARN_EVERY_S) == "third"
