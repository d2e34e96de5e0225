"""Policies by path: what is inherited, who says what, what is refused."""

from __future__ import annotations

import pytest

from cachefs.core.errors import BadConfig
from cachefs.core.policies import (
    DEFAULT,
    KEYS,
    MOST_NODES,
    PROFILES,
    Policy,
    Rule,
    above,
    check,
    formatted,
    merged,
    normal,
    parse,
    resolve,
    with_freeze,
)


def test_the_nearest_path_that_says_something_wins() -> None:
    chain = [
        (b"", Policy(ttl_s=60.0, admission="fill")),
        (b"a", Policy(pin=True)),
        (b"a/b", Policy(ttl_s=600.0, pin=False)),
    ]
    found = resolve(chain)
    assert (found.policy.pin, found.policy.ttl_s) == (False, 600.0)
    assert found.policy.admission == "fill"
    assert found.where == {
        "pin": "/a/b", "ttl_s": "/a/b", "admission": "/", "ttl_action": DEFAULT,
        "quota_bytes": DEFAULT, "replicas": DEFAULT, "local_copy": DEFAULT,
        "sync_background_s": DEFAULT, "view": DEFAULT,
    }  # fmt: skip


def test_a_profile_says_what_its_own_path_leaves_open() -> None:
    outer = (b"", Policy(admission="fill", sync_interval_s=7.0))
    found = resolve([outer, (b"w", Policy(profile="interactive", sync_interval_s=1.0))])
    assert found.policy.admission == PROFILES["interactive"].admission == "always"
    assert found.where["admission"] == "/w (interactive)"
    assert (found.policy.sync_interval_s, found.where["sync_interval_s"]) == (1.0, "/w")


def test_workers_are_told_of_owners_copies_and_the_way_out() -> None:
    chain = [(b"", Policy(replicas=3)), (b"a", Policy(local_copy="never", eviction="lru"))]
    rule = resolve(chain).rule
    assert (rule.replicas, rule.local_copy, rule.eviction) == (3, "never", "lru")
    assert [Rule(replicas=count).owners for count in (-1, 0, 1, 8, 99)] == [1, 1, 1, 8, 8]


@pytest.mark.parametrize(
    "policy", [Policy(replicas=0), Policy(replicas=9), Policy(local_copy=""), Policy(eviction="x")]
)
def test_what_means_nothing_is_refused_from_a_wire_too(policy: Policy) -> None:
    with pytest.raises(BadConfig):
        check(policy)


def test_every_quota_above_counts() -> None:
    chain = [(b"", Policy(quota_bytes=100)), (b"a", Policy()), (b"a/b", Policy(quota_bytes=10))]
    assert resolve(chain).rule.quotas == ((b"", 100), (b"a/b", 10))
    lifted = [*chain[:2], (b"a/b", Policy(quota_bytes=0))]
    assert resolve(lifted).rule.quotas == ((b"", 100),)


def test_nothing_said_is_the_default() -> None:
    found = resolve([])
    assert found.rule == type(found.rule)()
    assert set(found.where.values()) == {DEFAULT}


@pytest.mark.parametrize(
    "word",
    ["pin=yes", "ttl=7d", "ttl=never", "ttl_action=free", "quota=20GiB", "quota=none",
     "admission=always", "replicas=8", "local_copy=never", "eviction=lru",
     "sync_interval=90s", "sync_interval=never", "sync_background=1h",
     "sync_background=none", "profile=train-read", "view=auto", "view=native"],
)  # fmt: skip
def test_what_is_shown_can_be_given_again(word: str) -> None:
    policy = parse([word])
    check(policy)
    key, _, _ = word.partition("=")
    assert parse([f"{key}={formatted(policy)[key]}"]) == policy


@pytest.mark.parametrize(
    "word",
    ["pin=maybe", "ttl=0", "ttl=0.5s", "ttl=soon", "ttl_action=delete", "quota=-1", "pin",
     "admission=never", "replicas=0", "replicas=9", "replicas=two", "local_copy=maybe",
     "eviction=fifo", "profile=none-such", "colour=red", "sync_interval=-2", "=3",
     "sync_background=0", "sync_background=never", "sync_background=0.9s", "view=always"],
)  # fmt: skip
def test_what_means_nothing_is_refused(word: str) -> None:
    with pytest.raises(BadConfig):
        parse([word])


@pytest.mark.parametrize(
    "policy",
    [Policy(ttl_s=0.1), Policy(ttl_s=float("nan")), Policy(ttl_s=float("inf")),
     Policy(quota_bytes=-1), Policy(admission="x"), Policy(sync_interval_s=-3.0),
     Policy(profile="x"), Policy(ttl_action="delete"), Policy(sync_background_s=0.5),
     Policy(sync_background_s=-1.0), Policy(sync_background_s=float("nan")), Policy(view="always")],
)  # fmt: skip
def test_so_it_is_when_it_comes_over_a_wire(policy: Policy) -> None:
    with pytest.raises(BadConfig):
        check(policy)


def test_a_change_keeps_what_it_does_not_say() -> None:
    old = Policy(pin=True, ttl_s=60.0)
    assert merged(old, Policy(ttl_s=5.0)) == Policy(pin=True, ttl_s=5.0)
    assert merged(old, Policy(), ["pin"]) == Policy(ttl_s=60.0)
    assert merged(old, Policy(), ["pin", "ttl_s"]).says_nothing
    assert formatted(Policy()) == {}
    assert len(KEYS) == 12


def test_a_path_is_pinned_until_each_node_that_froze_it_has_thawed_it() -> None:
    both = with_freeze(with_freeze(Policy(ttl_s=5.0), "b", pinned=True), "a", pinned=True)
    assert both == Policy(ttl_s=5.0, frozen_by=("a", "b"))
    assert with_freeze(both, "a", pinned=True) == both
    one = with_freeze(both, "b", pinned=False)
    found = resolve([(b"x", one)])
    assert (found.policy.pin, found.where["pin"]) == (True, "/x (frozen)")
    assert formatted(one) == {"pin": "yes", "ttl": "5s"}
    assert with_freeze(one, "a", pinned=False) == Policy(ttl_s=5.0)


def test_a_freeze_and_an_operator_pin_apart() -> None:
    operators = merged(Policy(frozen_by=("a",)), Policy(pin=True))
    assert operators == Policy(pin=True, frozen_by=("a",))
    assert resolve([(b"x", operators)]).where["pin"] == "/x"
    assert with_freeze(operators, "a", pinned=False) == Policy(pin=True)
    assert merged(operators, Policy(), ["pin"]) == Policy(frozen_by=("a",))
    assert merged(operators, Policy(), ["pin", "frozen_by"]).says_nothing
    assert resolve([(b"", Policy(frozen_by=("a",))), (b"x", Policy(pin=False))]).policy.pin is False


def test_nobody_else_sets_the_pin_of_a_freeze_and_nodes_are_limited() -> None:
    with pytest.raises(BadConfig):
        check(Policy(frozen_by=("a",)))
    nodes = Policy(frozen_by=tuple(map(str, range(MOST_NODES))))
    with pytest.raises(BadConfig):
        with_freeze(nodes, "another", pinned=True)


def test_paths() -> None:
    assert normal(b"//a/./b/") == b"a/b"
    assert [*above(b"a/b")] == [b"a/b", b"a", b""]
    with pytest.raises(BadConfig):
        normal(b"a/../b")
