"""Quotas as sums: whatever comes and goes, what is counted is what is there."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from worker.tier.quotas import Bounds, Charges, Quotas

A, AB = (b"a", 100), (b"a/b", 10)
BOUNDS = st.sampled_from([(), (A,), (A, AB)])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "drop", "promise", "withdraw", "settle"]),
        st.integers(0, 1),
        st.sampled_from([b"x", b"y", b"z"]),
        BOUNDS,
        st.integers(0, 40),
    ),
    max_size=40,
)


@given(STEPS)
def test_sums_over_tiers(steps: list[tuple[str, int, bytes, Bounds, int]]) -> None:
    quotas = Quotas()
    tiers = [Charges(quotas), Charges(quotas)]
    cached: dict[tuple[int, bytes], tuple[Bounds, int]] = {}
    promised: dict[tuple[int, bytes], tuple[Bounds, int]] = {}
    for what, tier, key, bounds, size in steps:
        if what == "put":
            tiers[tier].put(key, bounds, size)
            cached[tier, key] = bounds, size
            promised.pop((tier, key), None)
        elif what == "drop":
            tiers[tier].drop(key)
            cached.pop((tier, key), None)
        elif what == "promise":
            tiers[tier].promise(key, bounds, size)
            before, more = promised.get((tier, key), (bounds, 0))
            promised[tier, key] = before, more + size
        elif what == "withdraw":
            tiers[tier].withdraw(key, size)
            before, more = promised.pop((tier, key), (bounds, 0))
            if size < more:
                promised[tier, key] = before, more - size
        else:
            assert {*tiers[tier].promised()} == {one for at, one in promised if at == tier}
            tiers[tier].settle([key])
            promised.pop((tier, key), None)
        want: Counter[bytes] = Counter()
        for charged, size_bytes in (*cached.values(), *promised.values()):
            want.update({path: size_bytes for path, _ in charged})
        assert {path: used for path, used in quotas.used_bytes.items() if used} == {
            path: used for path, used in want.items() if used
        }
        for path, most in (A, AB):
            room = most - want[path]
            assert (tiers[0].refuses(((path, most),), max(0, room)) is None) == (room >= 0)
            assert tiers[1].refuses(((path, most),), room + 1) == path


def test_a_node_has_its_share() -> None:
    shares = [0.25]
    quotas = Quotas(lambda: shares[0])
    charges = Charges(quotas)
    charges.put(b"x", (A,), 25)
    assert charges.refuses((A,), 1) == b"a"
    assert charges.excess() == {}
    shares[0] = 0.2
    assert charges.excess() == {b"a": 5}
    assert list(charges.charged(b"a")) == [(b"x", 25)]
