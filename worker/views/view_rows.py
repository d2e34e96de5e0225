"""The views of a node, and the trees of thawed ones, as status documents and tables show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from cachefs.core.messages import ViewStatus
from cachefs.core.policies import shown

if TYPE_CHECKING:
    from worker.cache.tier import Tier
    from worker.cache.tree_removals import TreeRemoval
    from worker.views.view import View

THAWING: Final = "thawing"


def removals_of(tiers: Sequence[Tier]) -> list[TreeRemoval]:
    """Returns the removals of trees that are not over."""
    return [removal for tier in tiers for removal in tier.views.removals.all()]


def status_of(removal: TreeRemoval) -> ViewStatus:
    """Returns the status of a thawed view, with what is left of its tree."""
    record = removal.record
    return ViewStatus(
        0, record.path, removal.files, removal.size_bytes, THAWING, removal.since_s,
        policy=record.policy,
    )  # fmt: skip


def view_rows(views: Sequence[View], tiers: Sequence[Tier]) -> list[dict[str, Any]]:
    """Returns what holds contents as plain values, for `cachefs status` and the metrics."""
    removals = [(tier, removal) for tier in tiers for removal in tier.views.removals.all()]
    return [
        *({"tier": view.tier.index, **row(view.namespace, view.status())} for view in views),
        *({"tier": tier.index, **row(one.record.namespace, status_of(one))}
          for tier, one in removals),
    ]  # fmt: skip


def row(namespace: bytes, status: ViewStatus) -> dict[str, Any]:
    """Returns a status as plain values."""
    return {
        "path": shown(status.path),
        "namespace": namespace.hex(),
        "state": status.state,
        "reason": status.reason,
        "since_s": status.since_s,
        "files": status.files,
        "bytes": status.size_bytes,
        "covers": status.covers,
        "policy": status.policy,
    }
