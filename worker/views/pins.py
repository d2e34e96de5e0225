"""The pins of frozen directories, which `Freeze` sets and `Thaw` removes.

A master that dies may have set a pin whose reply is lost, or not removed one. Such a path is
remembered: that pin is of the freeze that failed, not an operator's, and the next freeze or thaw of
the path takes it over.
"""

from __future__ import annotations

from typing import Final

from cachefs.core.errors import CacheFSError
from cachefs.core.model import NamespaceId
from cachefs.core.policies import Policy, shown
from cachefs.core.services import MetadataService, PolicyService

MOST_UNSURE: Final = 1000


class ViewPins:
    """The pins of one node's frozen directories."""

    def __init__(self) -> None:
        self._unsure: set[tuple[NamespaceId, bytes]] = set()

    async def pin(self, service: MetadataService, path: bytes) -> bool:
        """Pins a path; returns False if an operator had pinned it. Raises what the service raises.
        The path may then be pinned, as after a cancellation: the next thaw removes the pin."""
        if not isinstance(service, PolicyService):
            return False
        key = service.namespace, path
        if (await service.policies_at(path)).policy.pin:
            is_ours = key in self._unsure
            self._unsure.discard(key)
            return is_ours
        self.disown(service, path)
        try:
            await service.set_policy(path, Policy(pin=True), ())
        except CacheFSError as err:
            if err.retryable:
                err.remedy = f"freeze it again, or thaw it: {shown(path)} may be pinned"
            else:
                self._unsure.discard(key)
            raise
        self._unsure.discard(key)
        return True

    def disown(self, service: MetadataService, path: bytes) -> None:
        """Notes that no freeze has the pin of a path: the next freeze or thaw takes it over."""
        if len(self._unsure) < MOST_UNSURE:
            self._unsure.add((service.namespace, path))

    async def unpin(self, service: MetadataService, path: bytes) -> None:
        """Removes the pin. Raises what the service raises: the next thaw tries it again."""
        self.disown(service, path)
        if isinstance(service, PolicyService):
            await service.set_policy(path, Policy(), ("pin",))
        self._unsure.discard((service.namespace, path))

    async def release(self, service: MetadataService, path: bytes) -> bool:
        """Removes the pin of a freeze that failed; returns False without one."""
        if (service.namespace, path) not in self._unsure:
            return False
        await self.unpin(service, path)
        return True
