"""Of several replicas one holds the Lease, whatever their clocks say."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cachefs.kube import lease
from cachefs.kube.names import Object


def held(holder: str, version: str = "1") -> Object:
    return {"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": holder}}


def test_a_lease_that_nobody_holds_is_taken() -> None:
    assert lease.decide(None, None, "a", 0.0) == lease.Take(None)
    free = held("")
    assert lease.decide(free, lease.look(free, None, 0.0), "a", 0.0) == lease.Take(free)


def test_the_lease_of_another_is_taken_when_it_was_not_renewed() -> None:
    found = held("b")
    seen = lease.look(found, None, 100.0)
    assert lease.decide(found, seen, "a", 100.0 + lease.LEASE_S) == lease.WaitFor("b")
    assert lease.decide(found, seen, "a", 100.1 + lease.LEASE_S) == lease.Take(found)
    renewed = held("b", "2")
    again = lease.look(renewed, seen, 114.0)
    assert lease.decide(renewed, again, "a", 120.0) == lease.WaitFor("b")


def test_a_transition_is_counted_and_the_version_kept() -> None:
    body = lease.body_of(held("b", "9"), name="n", namespace="s", holder="a", now="t")
    assert body["metadata"] == {"resourceVersion": "9"}
    assert (body["spec"]["holderIdentity"], body["spec"]["leaseTransitions"]) == ("a", 1)
    again = lease.body_of(body, name="n", namespace="s", holder="a", now="u")
    assert (again["spec"]["leaseTransitions"], again["spec"]["acquireTime"]) == (1, "t")


class Replica:
    """A replica in simulated time, which may be stopped."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: lease.SeenLease | None = None
        self.renewed_at_s: float | None = None

    def acts(self, now: float) -> bool:
        return self.renewed_at_s is not None and not lease.is_lost(self.renewed_at_s, now)

    def turn(self, stored: dict[str, Any], now: float) -> None:
        if self.renewed_at_s is not None and not self.acts(now):
            self.renewed_at_s = None  # its process ends, and another is started
            self.seen = None
            return
        found = stored.get("lease")
        self.seen = lease.look(found, self.seen, now)
        if isinstance(lease.decide(found, self.seen, self.name, now), lease.Take):
            body = lease.body_of(found, name="n", namespace="s", holder=self.name, now="t")
            version = int(stored.get("version", 0)) + 1
            body["metadata"] = {"resourceVersion": str(version)}
            stored.update(lease=body, version=version)
            self.renewed_at_s = now


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0.1, 8.0)), max_size=80))
def test_no_two_replicas_act_at_a_time(turns: list[tuple[int, float]]) -> None:
    replicas = [Replica(name) for name in "abc"]
    stored: dict[str, Any] = {}
    now = 0.0
    for number, passed_s in turns:
        now += passed_s
        replicas[number].turn(stored, now)
        assert sum(replica.acts(now) for replica in replicas) <= 1
