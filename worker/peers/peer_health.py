"""What is known of each peer: whether it answers, how soon, and whether to ask it at all. Pure.

A peer that does not answer is avoided for a while, longer each time; then one read tries it. A peer
whose bytes of a content were wrong is not asked for that content for a while. One that lives and
waits in vain for the origin (its way there may be broken, and that of others not) is asked for what
it has and to bring nothing for a while, longer each time; then one read tries it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 10.0
TRY_S: Final = 5.0  # how long the one who tries a failed peer again has it for itself
SLOW_ORIGIN_S: Final = 5.0  # a failure that took less costs its reader little
ORIGIN_PAUSE_S: Final = 30.0
LONGEST_ORIGIN_PAUSE_S: Final = 240.0
WRONG_S: Final = 60.0
MOST_WRONG: Final = 1_000
MOST_NEWS: Final = 100
LATENCY_SHARE: Final = 0.2  # of the newest answer in the average
HEDGE_FACTOR: Final = 4.0
LEAST_HEDGE_S: Final = 0.02
MOST_HEDGE_S: Final = 1.0
OUTRUN_S: Final = 5.0  # for so long who was outrun is hedged at once


class _Peer:
    __slots__ = (
        "avoid_until_s",
        "bring_from_s",
        "failures",
        "latency_s",
        "origin_failed_at_s",
        "origin_failures",
        "outrun_until_s",
    )

    def __init__(self) -> None:
        self.failures = 0  # since the last answer
        self.avoid_until_s = 0.0
        self.latency_s = -1.0  # of what it had; below 0: not known
        self.outrun_until_s = 0.0
        self.origin_failures = 0  # since it brought something
        self.origin_failed_at_s = float("-inf")
        self.bring_from_s = 0.0

    @property
    def origin_pause_s(self) -> float:
        return min(LONGEST_ORIGIN_PAUSE_S, ORIGIN_PAUSE_S * 2.0 ** min(self.origin_failures - 1, 8))


class Peers:
    """By member id. Bounded by `keep`."""

    def __init__(self) -> None:
        self._peers: dict[str, _Peer] = {}
        self._wrong: dict[tuple[str, bytes], float] = {}
        self._news: list[str] = []
        self.failures = 0  # since the start

    def take(self, peer: str, content: bytes, now: float) -> bool:
        """May it be asked now? True for one that failed makes the caller the one who tries it."""
        if self._wrong.get((peer, content), 0.0) > now:
            return False
        known = self._peers.get(peer)
        if known is None or not known.failures:
            return True
        if now < known.avoid_until_s:
            return False
        known.avoid_until_s = now + TRY_S
        return True

    def answered(self, peer: str, latency_s: float | None = None) -> None:
        """Any answer. `latency_s`: of an answer with what it had already."""
        known = self._peers.setdefault(peer, _Peer())
        known.failures = 0
        known.avoid_until_s = known.outrun_until_s = 0.0
        if latency_s is not None and known.latency_s >= 0:
            known.latency_s += LATENCY_SHARE * (latency_s - known.latency_s)
        elif latency_s is not None:
            known.latency_s = latency_s

    def failed(self, peer: str, now: float) -> None:
        """It refused the connection, broke it, or said nothing in time."""
        known = self._peers.setdefault(peer, _Peer())
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(known.failures, 8))
        known.failures += 1
        known.avoid_until_s = now + pause_s
        self.failures += 1
        if known.failures == 1:
            self._news = [*self._news[-MOST_NEWS:], peer]

    def may_bring(self, peer: str, now: float) -> bool:
        """May it be asked to bring something? True for one whose origin failed makes the caller the
        one who tries it."""
        known = self._peers.get(peer)
        if known is None or not known.origin_failures:
            return True
        if now < known.bring_from_s:
            return False
        known.bring_from_s = now + known.origin_pause_s
        return True

    def brought(self, peer: str) -> None:
        """Something that it had not."""
        self._peers.setdefault(peer, _Peer()).origin_failures = 0

    def origin_failed(self, peer: str, took_s: float, now: float) -> None:
        """It could not bring something, and said so after `took_s`."""
        known = self._peers.setdefault(peer, _Peer())
        if took_s < SLOW_ORIGIN_S or now - took_s < known.origin_failed_at_s:
            return  # many that were asked together fail together: that counts once
        known.origin_failures += 1
        known.origin_failed_at_s = now
        known.bring_from_s = now + known.origin_pause_s

    def take_news(self) -> list[str]:
        """The peers that failed for the first time since their last answer, each told once."""
        news, self._news = self._news, []
        return news

    def has_just_failed(self, peer: str) -> bool:
        """It failed once since its last answer."""
        known = self._peers.get(peer)
        return known is not None and known.failures == 1

    def wrong(self, peer: str, content: bytes, now: float) -> None:
        """Its bytes of a content had not their checksum."""
        if len(self._wrong) >= MOST_WRONG:
            self._wrong = {pair: until for pair, until in self._wrong.items() if until > now}
            if len(self._wrong) >= MOST_WRONG:
                self._wrong.clear()
        self._wrong[peer, content] = now + WRONG_S

    def outrun(self, peer: str, now: float) -> None:
        """Another replica, asked later, answered first."""
        self._peers.setdefault(peer, _Peer()).outrun_until_s = now + OUTRUN_S

    def hedge_after_s(self, peer: str, now: float) -> float:
        """How long an answer with what is there may take before another replica is asked."""
        known = self._peers.get(peer)
        if known is not None and now < known.outrun_until_s:
            return LEAST_HEDGE_S
        if known is None or known.latency_s < 0:
            return MOST_HEDGE_S / 4
        return min(MOST_HEDGE_S, max(LEAST_HEDGE_S, HEDGE_FACTOR * known.latency_s))

    def keep(self, members: Collection[str]) -> None:
        """Forgets all but these."""
        self._peers = {peer: known for peer, known in self._peers.items() if peer in members}

    def status(self, now: float) -> dict[str, dict[str, float]]:
        """For people."""
        return {
            peer: {
                "failures": known.failures,
                "avoided_s": round(max(0.0, known.avoid_until_s - now), 3),
                "latency_s": round(max(0.0, known.latency_s), 6),
            }
            for peer, known in self._peers.items()
        }
