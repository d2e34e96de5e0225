"""The admin API's health: the facts of this master and its workers, and the problems in them."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from cachefs.core import admin as a
from cachefs.core import cluster as c
from cachefs.core.health import facts_of, health
from master.server.admin.at import At
from master.server.admin.policies import quota_uses


async def show(at: At) -> a.Health:
    """Handles GET /health. Raises AccessDenied for a token with a path: it shows all sources."""
    tree = dict((await at.ask(c.MasterStatus(), c.MasterStatusReply)).status)
    if "cache" not in tree:  # an embedded server's document has its cache and quotas
        tree["workers"] = [_worker(row) for row in at.backend.workers.rows()]
        tree["quotas"] = [msgspec.to_builtins(one) for one in await quota_uses(at, b"")]
    return a.Health(health(facts_of(tree), time.time()))


def _worker(row: c.WorkerRow) -> dict[str, Any]:
    names = ("id", "url", "host", "state", "weight", "seen_s", "version")
    return {name: getattr(row, name) for name in names} | {
        name: row.facts[name] for name in ("tiers", "certificate") if name in row.facts
    }
