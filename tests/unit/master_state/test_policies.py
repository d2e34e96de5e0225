"""The master's decisions about policies: who is protected, and when `pin` may return."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cachefs.core.model import ContentId, NamespaceId
from cachefs.core.policies import NO_RULE, PERMISSION_S, PERMISSION_WINDOW_S, Policy, resolve
from master.state.policies import MOST_GIVEN, PermissionWindow, PolicyTable

NAMESPACE = NamespaceId(b"n" * 16)
NAMES = st.sampled_from([b"", b"a", b"a/b", b"a/b/c", b"ab", b"a/bc", b"z"])
POLICIES = st.builds(
    Policy,
    pin=st.sampled_from([None, True, False]),
    ttl_s=st.sampled_from([None, 5.0, -1.0]),
    quota_bytes=st.sampled_from([None, 0, 10]),
    profile=st.sampled_from([None, "train-read"]),
    frozen_by=st.sampled_from([None, ("node",)]),
)


def content(ino: int) -> ContentId:
    return ContentId(NAMESPACE, ino, 0, ino)


@given(st.lists(st.tuples(NAMES, POLICIES), max_size=12), NAMES)
def test_any_history_of_changes_answers_as_its_last_state(
    changes: list[tuple[bytes, Policy]], path: bytes
) -> None:
    table = PolicyTable()
    for where, policy in changes:
        table.effective(path)  # what is kept of earlier answers does no harm
        table.put(where, policy)
    last = {where: policy for where, policy in dict(changes).items() if not policy.says_nothing}
    parts = path.split(b"/") if path else []
    chain = [b"/".join(parts[:n]) for n in range(len(parts) + 1)]
    want = resolve([(one, last[one]) for one in chain if one in last])
    assert table.effective(path) == want
    assert table.rule(path) == want.rule
    assert table.is_pinned(path) == bool(want.policy.pin)
    assert not table.is_pinned(path) or table.pins
    assert len(table) == len(last)


def test_directories_in_which_not_all_have_one_rule() -> None:
    table = PolicyTable({b"a/b": Policy(pin=True), b"": Policy(ttl_s=5.0)})
    assert [one for one in (b"", b"a", b"a/b") if table.differs_in(one)] == [b"a"]
    table.put(b"z", Policy(pin=True))
    assert table.differs_in(b"")


def test_what_is_said_below() -> None:
    table = PolicyTable({b"a": Policy(pin=True), b"ab": Policy(ttl_s=5.0), b"a/b": Policy()})
    assert [path for path, _ in table.below(b"a")] == [b"a/b"]
    assert [path for path, _ in table.below(b"")] == [b"a", b"a/b", b"ab"]
    assert PolicyTable().rule(b"a") is NO_RULE


def test_a_freeze_pins_as_an_operator_does() -> None:
    table = PolicyTable({b"": Policy(ttl_s=5.0)})
    frozen = Policy(frozen_by=("node",))
    assert table.concerns_cached(b"a", frozen)
    table.put(b"a", frozen)
    assert table.pins
    assert table.pinned_below(b"") == table.pinned_below(b"a") == [b"a"]
    assert not table.concerns_cached(b"a", Policy(pin=True, frozen_by=("node", "other")))


# One step: some contents are allowed to be evicted (True), or a path is pinned (False).
STEPS = st.lists(
    st.tuples(st.booleans(), st.integers(1, 6), st.floats(0, 12, allow_nan=False)), max_size=20
)


@given(STEPS, st.booleans())
def test_no_acknowledged_pin_is_ever_evicted(
    steps: list[tuple[bool, int, float]], restarted: bool
) -> None:
    """A worker may use a permission until PERMISSION_S after it was given. No pin is acknowledged
    before, whatever else was allowed meanwhile, and also after a restart of the master."""
    now, unknown = 100.0, 95.0 if restarted else float("-inf")
    window = PermissionWindow(unknown)
    given_at: dict[int, float] = dict.fromkeys(range(1, 7), 95.0) if restarted else {}
    pinned: set[int] = set()
    for evicts, ino, wait_s in steps:
        now += wait_s
        if evicts:
            allowed = [one for one in (ino, ino + 1) if one not in pinned]
            window.give([content(one) for one in allowed], now)
            given_at |= dict.fromkeys(allowed, now)
            continue
        pinned.add(ino)  # committed: no permission is given from here on
        acknowledged = now + window.left_s(now, lambda one, ino=ino: one.ino == ino)  # type: ignore[misc]
        usable_until = given_at.get(ino, float("-inf")) + PERMISSION_S
        assert acknowledged >= usable_until
        assert acknowledged <= now + PERMISSION_WINDOW_S


def test_a_pin_waits_for_nobody_elses_permissions() -> None:
    window = PermissionWindow()
    window.give([content(1)], 100.0)
    assert window.left_s(101.0, lambda one: one.ino == 2) == 0.0
    assert window.left_s(101.0, lambda one: one.ino == 1) == PERMISSION_WINDOW_S - 1.0


def test_what_the_window_forgot_counts_for_everything() -> None:
    window = PermissionWindow()
    window.give([content(1)], 100.0)
    window.give([content(ino) for ino in range(2, MOST_GIVEN + 2)], 101.0)
    assert window.left_s(101.0, lambda one: False) == PERMISSION_WINDOW_S - 1.0
