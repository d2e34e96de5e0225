"""The interface of a queue in which a store's events wait for the master."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

AT_ONCE: Final = 10  # messages of one request, at most


class QueueMessage(NamedTuple):
    """A message as the queue delivers it. `handle` deletes it. `sent_at`: wall clock s."""

    body: str
    handle: str
    sent_at: float


class EventQueue(Protocol):
    """A queue that delivers each message at least once. Each call blocks a thread, and has a time
    limit. For several threads. Raises the typed errors of `cachefs.core.errors`."""

    def receive(self, wait_s: int, visible_after_s: int) -> list[QueueMessage]:
        """Returns up to `AT_ONCE` messages; waits up to `wait_s` for the first. Messages that are
        not deleted are delivered again after `visible_after_s`."""

    def delete(self, handles: Sequence[str]) -> None:
        """Deletes up to `AT_ONCE` messages. One that is not deleted is delivered again."""

    def retention_s(self) -> float:
        """Returns for how long the queue keeps a message."""

    def close(self) -> None:
        """Closes idle connections; a call in progress ends later. Idempotent."""
