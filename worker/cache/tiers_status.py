"""The status of all tiers of a node, as one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cachefs.core.tiers import TierSpec

SHARED: Final = ("admission", "eviction", "memory")  # the same for all
LISTS: Final = ("tiers", "origins")  # joined
GAUGES: Final = (
    "limit_bytes",
    "used_bytes",
    "reserved_bytes",
    "fills_in_flight",
    "tiers",
    "quota_used_bytes",
    "slow_fills",
    "origins",
)


@dataclass(frozen=True, slots=True)
class Row:
    """The status of a tier; None while it is lost, then `cause` is the reason."""

    tier: int
    spec: TierSpec
    status: Mapping[str, Any] | None
    cause: str = ""


def combined(rows: Sequence[Row], past: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sums of `TierStatus.tree`, `past` (see `counted`) included. One row at
    least is not lost."""
    found = [row.status for row in rows if row.status is not None]
    total: dict[str, Any] = {name: found[0][name] for name in SHARED}
    for status in (*found, past):
        for name, value in status.items():
            if name not in SHARED and name not in LISTS:
                total[name] = _sum(total.get(name), value)
    like = found[0]["tiers"][0]
    total["tiers"] = [tier for row in rows for tier in _tiers(row, like)]
    total["origins"] = _last_by_url(found)
    return total


def _last_by_url(found: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the origins that fail, each once."""
    return list({one["url"]: one for status in found for one in status["origins"]}.values())


def counted(past: Mapping[str, Any], status: Mapping[str, Any]) -> dict[str, Any]:
    """`past`, and what a worker counted that is no more: totals never fall."""
    total = dict(past)
    for name, value in status.items():
        if name not in SHARED and name not in GAUGES:
            kept = _of_ever(value) if name == "paths" else value
            total[name] = _sum(total.get(name), kept)
    return total


def _of_ever(paths: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """Counts by path, without those of just now."""
    return {
        path: {name: n for name, n in counts.items() if not name.startswith("recent_")}
        for path, counts in paths.items()
    }


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


def _tiers(row: Row, like: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the rows of a tier. `like`: another tier's row; a lost tier has its keys, all
    zeros."""
    if row.status is None:
        nothing: dict[str, Any] = dict.fromkeys(like, 0)
        facts = {"path": row.spec.path, "state": "offline", "cause": row.cause}
        known = [{**nothing, **facts, "limit_bytes": row.spec.limit_bytes}]
    else:
        known = row.status["tiers"]
    return [{"tier": row.tier, "kind": row.spec.kind, **tier} for tier in known]
