"""Which replica of the controller acts: the holder of a Lease of Kubernetes. Pure.

A replica counts the time since it saw the Lease change, by its own clock. So clocks that differ
between machines do no harm. A holder that could not renew the Lease for `RENEW_LIMIT_S` ends before
another replica may take it, `LEASE_S` after the last renewal.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from cachefs.kube.names import Object

LEASE_S: Final = 15.0
RENEW_LIMIT_S: Final = 10.0
RENEW_S: Final = 3.0
LOOK_S: Final = 2.0


class SeenLease(msgspec.Struct, frozen=True):
    """The Lease as it was when it last changed. `at_s`: of this replica's clock."""

    version: str
    holder: str
    at_s: float


class Take(msgspec.Struct, frozen=True):
    """The replica may write itself into the Lease. `thing`: None where there is no Lease."""

    thing: Object | None


class WaitFor(msgspec.Struct, frozen=True):
    holder: str


def look(found: Object | None, before: SeenLease | None, now: float) -> SeenLease | None:
    """Returns what was seen of the Lease, with the time at which it changed."""
    if found is None:
        return None
    version = found["metadata"].get("resourceVersion", "")
    if before is not None and before.version == version:
        return before
    return SeenLease(version, (found.get("spec") or {}).get("holderIdentity") or "", now)


def decide(found: Object | None, seen: SeenLease | None, me: str, now: float) -> Take | WaitFor:
    """Returns whether this replica may take the Lease."""
    if found is None or seen is None:
        return Take(None)
    if seen.holder in ("", me) or now - seen.at_s > LEASE_S:
        return Take(found)
    return WaitFor(seen.holder)


def is_lost(renewed_at_s: float, now: float) -> bool:
    """Returns whether a holder must end: it may not know that another replica has the Lease."""
    return now - renewed_at_s > RENEW_LIMIT_S


def body_of(
    found: Object | None, *, name: str, namespace: str, holder: str, now: str
) -> dict[str, Any]:
    """Returns the Lease to write. `holder` "": it is given back. `now`: UTC, with microseconds.
    The version of the found one is kept, so that of two replicas one writes."""
    spec = dict((found or {}).get("spec") or {})
    if holder and spec.get("holderIdentity") != holder:
        spec["acquireTime"] = now
        spec["leaseTransitions"] = spec.get("leaseTransitions", 0) + (found is not None)
    spec |= {"holderIdentity": holder, "leaseDurationSeconds": int(LEASE_S), "renewTime": now}
    metadata = (found or {}).get("metadata") or {"name": name, "namespace": namespace}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": spec,
    }
