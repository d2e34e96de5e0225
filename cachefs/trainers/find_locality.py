"""Finds the cluster's workers, and the worker on the machine of each rank of a training run."""

from __future__ import annotations

import sys
from typing import Any

from cachefs.core import messages as m
from cachefs.core.errors import BadConfig
from cachefs.core.orders import Share
from cachefs.core.placement import Member
from cachefs.trainers.batch_shares import Locality
from cachefs.trainers.manifest import Manifest
from cachefs.trainers.mount_session import open_session

NodeView = tuple[str, dict[str, float]]  # the worker here, and the weights of all workers


def find_locality(manifest: Manifest, share: Share) -> Locality | None:
    """Returns what `BatchShares` needs, after all ranks exchanged it by torch.distributed; every
    rank must call it. Returns None if the mount belongs to no cluster. Raises BadConfig without a
    process group of this size."""
    views = _gathered(node_view(manifest), share)
    weights = views[0][1]  # of rank 0: two nodes may know two epochs
    if not weights:
        return None
    members = tuple(Member(id, "", weight) for id, weight in sorted(weights.items()))
    return Locality(members, tuple(node for node, _ in views))


def node_view(manifest: Manifest) -> NodeView:
    """Returns this machine's worker and the weights of all workers, as the former knows them;
    nothing if the mount belongs to no cluster, or if this process may not connect to the worker."""
    session = open_session(manifest.path, manifest.home)
    if session is None:
        return "", {}
    try:
        status = session.call(m.Status(), m.StatusReply).status
    finally:
        session.close()
    member: dict[str, Any] = status.get("member", {})
    return member.get("worker", ""), member.get("weights", {})


def _gathered(view: NodeView, share: Share) -> list[NodeView]:
    """Returns the views of all ranks."""
    if share.world_size == 1:
        return [view]
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    ready = distributed is not None and distributed.is_available() and distributed.is_initialized()
    if distributed is None or not ready or distributed.get_world_size() != share.world_size:
        raise BadConfig(
            f"locality=True needs a torch.distributed process group of {share.world_size} ranks",
            remedy="call torch.distributed.init_process_group first, or give a Locality",
        )
    views: list[Any] = [None] * share.world_size
    distributed.all_gather_object(views, view)
    return views
