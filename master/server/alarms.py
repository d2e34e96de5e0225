"""What a master knows of its whole cluster for alerts: the document that `cachefs.core.health`
judges. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from cachefs.core.cluster import WorkerRow
from cachefs.core.health import CODES, facts_of, health

_OF_ROW: Final = ("id", "url", "host", "state", "weight", "seen_s", "version", "twin_url")
_OF_FACTS: Final = ("tiers", "certificate", "origins")
ID_DIGITS: Final = 8


def worker_facts(row: WorkerRow) -> dict[str, Any]:
    """Returns what is judged of a worker."""
    known = {name: row.facts[name] for name in _OF_FACTS if name in row.facts}
    return {name: getattr(row, name) for name in _OF_ROW} | known


def quota_used_bytes(rows: Iterable[WorkerRow]) -> dict[str, int]:
    """Returns the used bytes of all workers by shown path, from their last heartbeats."""
    total: Counter[str] = Counter()
    for row in rows:
        total.update(row.facts.get("quota_used_bytes", {}))
    return dict(total)


def problem_counts(document: Mapping[str, Any], now: float) -> dict[str, int]:
    """Returns the number of problems by code, also of the codes without any. `now`: wall time."""
    found = Counter(one.code for one in health(facts_of(dict(document)), now))
    return {code: found[code] for code in CODES}


def certificate_expiries(document: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Returns when the certificate of each server expires, as wall time: (server, time)."""
    workers: Sequence[Mapping[str, Any]] = document["workers"]
    servers = [("master", document["certificate"])]
    servers += [(f"worker {one['id'][:ID_DIGITS]}", one.get("certificate", {})) for one in workers]
    return [(name, facts["expires_at_s"]) for name, facts in servers if facts]
