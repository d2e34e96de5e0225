"""A supervisor's claim on its mount in the node's holder.

The holder gives the claim to the last process that requested it, and reports that to the former
one. When the holder is lost, this supervisor deposits the mount with the next one and claims it
again: one of the two always has the descriptors.
"""

from __future__ import annotations

import logging
import math
from typing import Final

import msgspec

from cachefs.core.errors import CacheFSError
from cachefs.core.specs import ClientSpec, DepositRef, Held
from cachefs.fuse import mounting
from cachefs.fuse.deposits import Deposit, HolderClient

log = logging.getLogger(__name__)

RETRY_S: Final = 0.25
RETRY_MAX_S: Final = 5.0


class HeldMount:
    """The claim of one supervisor. The methods block for as long as `HolderClient` does."""

    def __init__(self, spec: ClientSpec, ref: DepositRef, held: Held) -> None:
        bare = msgspec.structs.replace(spec, control_fd=-1, held=None)
        self._deposit = Deposit(bare, held.negotiated, ref.device)
        self._ref = ref
        self._held = held
        self._client: HolderClient | None = None
        self._is_wanted = False
        self._is_failing = False
        self._is_taken = False  # another process has claimed the mount since `_connect`
        self._retry_at = -math.inf
        self._pause_s = RETRY_S

    def claim(self) -> bool:
        """Deposits and claims the mount. Returns False if the mount has ended. `keep` tries again
        with a holder that is away."""
        if mounting.has_ended(self._held.fuse_fd):
            return False
        self._is_wanted = True
        try:
            self._connect()
        except CacheFSError as err:
            log.warning("cannot claim the mount, trying again: %s", err.one_line())
        return True

    def keep(self, now: float) -> bool:
        """Deposits and claims again after the loss of the holder. Returns whether this call did."""
        if not self._is_wanted or self._client is not None or now < self._retry_at:
            return False
        self._retry_at = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, RETRY_MAX_S)
        if mounting.has_ended(self._held.fuse_fd):
            return False
        try:
            self._connect()
        except CacheFSError as err:
            log.debug("cannot deposit the mount yet: %s", err.one_line())
            return False
        log.info("deposited the mount again")
        return True

    def _connect(self) -> None:
        """Deposits and claims at a new connection. The deposit comes first, also for a mount that
        another process has deposited: the holder may be a new one since then."""
        client = HolderClient(self._ref.holder, self._ref.name)
        try:
            client.put(self._ref.key, self._deposit, self._held.fuse_fd, self._held.table_fd)
            client.claim(self._ref.key, is_failing=self._is_failing)
        except CacheFSError:
            client.close()
            raise
        self._client, self._pause_s, self._is_taken = client, RETRY_S, False

    def fileno(self) -> int:
        """Returns the descriptor of the connection, -1 if there is none."""
        return self._client.fileno() if self._client is not None else -1

    def must_hand_over(self) -> bool:
        """Returns whether another process has claimed the mount; reads what has arrived. Closes the
        connection when the holder has ended."""
        if self._client is None:
            return False
        try:
            self._is_taken |= any(event.verb == "HANDOVER" for event in self._client.events())
            return self._is_taken
        except CacheFSError as err:
            log.warning("lost the holder: %s", err.one_line())
            self.close()
            return False

    def tell(self, is_failing: bool) -> bool:
        """Reports to agents whether the clients of this claim fail, if that has changed: not once
        another process has the claim, which would lose it. Returns whether it has changed; then
        `must_hand_over` follows."""
        if is_failing == self._is_failing:
            return False
        self._is_failing = is_failing
        if not self.must_hand_over() and self._client is not None:
            try:
                self._client.claim(self._ref.key, is_failing=is_failing)
            except CacheFSError as err:
                log.warning("lost the holder: %s", err.one_line())
                self.close()
        return True

    def drop(self) -> None:
        """Drops the deposit of a mount that has ended."""
        try:
            with HolderClient(self._ref.holder, self._ref.name) as client:
                client.drop(self._ref.key)
        except CacheFSError as err:
            log.info("the deposit of an ended mount stays: %s", err.one_line())

    def close(self) -> None:
        """Gives up the claim. Idempotent."""
        if self._client is not None:
            self._client.close()
            self._client = None
