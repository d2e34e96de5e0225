"""The pins of frozen directories, which `Freeze` sets and `Thaw` removes.

The policy of a path names the nodes whose freezes pin it. So a thaw removes the pin of its own node
alone, and also one that a freeze left which failed, was interrupted, or whose reply was lost.
"""

from __future__ import annotations

from typing import Final

from cachefs.core.errors import CacheFSError
from cachefs.core.policies import Policy, shown
from cachefs.core.services import MetadataService, PolicyService

LOCAL: Final = "local"  # the one node of a master that runs in it


class ViewPins:
    """The pins of one node's frozen directories."""

    def __init__(self, node: str) -> None:
        self._node = node

    async def pin(self, service: MetadataService, path: bytes) -> bool:
        """Pins a path; returns False if the master has no pin of this freeze. Raises what the
        service raises. The path may then be pinned, as after a cancellation."""
        if not isinstance(service, PolicyService):
            return False
        try:
            policy = await service.set_policy(path, Policy(pin=True), (), self._node)
        except CacheFSError as err:
            if err.retryable:
                err.remedy = f"freeze it again, or thaw it: {shown(path)} may be pinned"
            raise
        return self._has_pinned(policy)

    async def unpin(self, service: MetadataService, path: bytes) -> bool:
        """Removes the pin of a freeze; returns False without one. Raises what the service raises:
        the next thaw tries it again."""
        if not isinstance(service, PolicyService):
            return False
        if not self._has_pinned((await service.policies_at(path)).said):
            return False
        await service.set_policy(path, Policy(), ("pin",), self._node)
        return True

    def _has_pinned(self, policy: Policy) -> bool:
        return self._node in (policy.frozen_by or ())  # an earlier master knows no nodes
