"""What the tiers of a node say of themselves, as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cachefs.core.tiers import TierSpec

SHARED: Final = ("admission", "eviction", "memory")  # the same for all


@dataclass(frozen=True, slots=True)
class Row:
    """A tier. `status`: its worker's; None while it is lost, then `cause` says why."""

    tier: int
    spec: TierSpec
    status: Mapping[str, Any] | None
    cause: str = ""


def combined(rows: Sequence[Row]) -> dict[str, Any]:
    """As `worker.status.status`; those of tiers that are lost are not in the sums."""
    found = [row.status for row in rows if row.status is not None]
    total: dict[str, Any] = {name: found[0][name] for name in SHARED}
    for status in found:
        for name, value in status.items():
            if name not in SHARED and name != "tiers":
                total[name] = _sum(total.get(name), value)
    total["tiers"] = [tier for row in rows for tier in _tiers(row)]
    return total


def _sum(known: Any, value: Any) -> Any:
    """Numbers are added, trees leaf by leaf, histograms (pairs of a bound and a count) by bound."""
    if known is None:
        return value
    if isinstance(value, dict):
        return {**known, **{name: _sum(known.get(name), one) for name, one in value.items()}}
    if isinstance(value, list):
        counts = dict(known)
        return [[bound, count + counts.get(bound, 0)] for bound, count in value]
    return known + value


def _tiers(row: Row) -> list[dict[str, Any]]:
    if row.status is None:
        facts = {"path": row.spec.path, "state": "lost", "cause": row.cause, "used_bytes": 0}
        known: list[dict[str, Any]] = [{**facts, "limit_bytes": row.spec.limit_bytes}]
    else:
        known = row.status["tiers"]
    return [{"tier": row.tier, "kind": row.spec.kind, **tier} for tier in known]
