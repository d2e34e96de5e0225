"""What an agent counts, for its metrics."""

from __future__ import annotations

from typing import Final

from cachefs.fuse.deposits import Event

CAUSES: Final = ("start", "new", "lost")  # of takeovers


class AgentFacts:
    """The counters of an agent, for its metrics."""

    def __init__(self) -> None:
        self.mounts = 0
        self.takeovers = dict.fromkeys(CAUSES, 0)
        self.aborted = 0
        self.deposits = 0
        self.longest_pause_s = 0.0
        self._free_since: dict[str, float] = {}

    def started(self, cause: str) -> None:
        self.takeovers[cause] += 1

    def note(self, event: Event, name: str, now: float) -> None:
        """Notes an event of the holder. A pause lasts from the end of a claim to the next one."""
        if event.verb == "PUT":
            self.deposits += 1
        elif event.verb == "FREE":
            self._free_since[event.key] = now
        elif event.verb in ("CLAIM", "DROP"):
            since = self._free_since.pop(event.key, now)
            if event.name == name:
                self.longest_pause_s = max(self.longest_pause_s, now - since)
