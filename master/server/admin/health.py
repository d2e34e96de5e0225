"""The admin API's health: the facts of this master and its workers, and the problems in them."""

from __future__ import annotations

import time

import msgspec

from cachefs.core import admin as a
from cachefs.core import cluster as c
from cachefs.core.health import facts_of, health
from master.server.admin.at import At
from master.server.admin.policies import quota_uses
from master.server.alarms import worker_facts


async def show(at: At) -> a.Health:
    """Handles GET /health. Raises AccessDenied for a token with a path: it shows all sources."""
    tree = dict((await at.ask(c.MasterStatus(), c.MasterStatusReply)).status)
    if "cache" not in tree:  # an embedded server's document has its cache and quotas
        tree["workers"] = [*map(worker_facts, at.backend.workers.rows())]
        tree["quotas"] = [msgspec.to_builtins(one) for one in await quota_uses(at, b"")]
    return a.Health(health(facts_of(tree), time.time()))
