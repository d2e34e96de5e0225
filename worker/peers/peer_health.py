"""The health of each peer: failures, latency, and whether to send it requests. Pure.

A peer that does not reply is avoided with exponential backoff; then one read probes it. A peer that
sent wrong bytes of a content gets no requests for that content for `WRONG_S`. A live peer whose
fills fail slowly (perhaps only its own path to the origin is broken) gets requests only for cached
pages, with exponential backoff; then one read probes it with a fill.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 10.0
TRY_S: Final = 5.0  # the time in which no other read probes a failed peer
SLOW_ORIGIN_S: Final = 8.0  # a faster failure of an origin is not counted: it costs little
ORIGIN_PAUSE_S: Final = 30.0
LONGEST_ORIGIN_PAUSE_S: Final = 240.0
WRONG_S: Final = 60.0
MOST_WRONG: Final = 1_000
MOST_NEWS: Final = 100
LATENCY_SHARE: Final = 0.2  # the weight of the newest reply in the average
HEDGE_FACTOR: Final = 4.0
LEAST_HEDGE_S: Final = 0.02
MOST_HEDGE_S: Final = 1.0
OUTRUN_S: Final = 5.0  # the time in which an outrun peer is hedged after `LEAST_HEDGE_S`


class _Peer:
    __slots__ = (
        "avoid_until_s",
        "failures",
        "fill_from_s",
        "latency_s",
        "origin_failed_at_s",
        "origin_failures",
        "outrun_until_s",
    )

    def __init__(self) -> None:
        self.failures = 0  # since the last reply
        self.avoid_until_s = 0.0
        self.latency_s = -1.0  # of replies from its cache; below 0: unknown
        self.outrun_until_s = 0.0
        self.origin_failures = 0  # since its last fill that succeeded
        self.origin_failed_at_s = float("-inf")
        self.fill_from_s = 0.0

    @property
    def origin_pause_s(self) -> float:
        return min(LONGEST_ORIGIN_PAUSE_S, ORIGIN_PAUSE_S * 2.0 ** min(self.origin_failures - 1, 8))


class PeerHealth:
    """The health of all peers, by member id. Bounded by `keep`."""

    def __init__(self) -> None:
        self._peers: dict[str, _Peer] = {}
        self._wrong: dict[tuple[str, bytes], float] = {}
        self._news: list[str] = []
        self.failures = 0  # since the start

    def take(self, peer: str, content: bytes, now: float) -> bool:
        """Returns whether to send a peer a request now. True for a failed peer makes the caller's
        request the probe: for `TRY_S`, other callers get False."""
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
        """Records any reply. `latency_s`: of a reply from the peer's cache."""
        known = self._peers.setdefault(peer, _Peer())
        known.failures = 0
        known.avoid_until_s = known.outrun_until_s = 0.0
        if latency_s is not None and known.latency_s >= 0:
            known.latency_s += LATENCY_SHARE * (latency_s - known.latency_s)
        elif latency_s is not None:
            known.latency_s = latency_s

    def failed(self, peer: str, now: float) -> None:
        """Records that a peer refused or broke a connection, or timed out."""
        known = self._peers.setdefault(peer, _Peer())
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(known.failures, 8))
        known.failures += 1
        known.avoid_until_s = now + pause_s
        self.failures += 1
        if known.failures == 1:
            self._news = [*self._news[-MOST_NEWS:], peer]

    def may_request_fill(self, peer: str, now: float) -> bool:
        """Returns whether to request a fill from a peer. True for a peer whose origin failed makes
        the caller's request the probe: for the current backoff, other callers get False."""
        known = self._peers.get(peer)
        if known is None or not known.origin_failures:
            return True
        if now < known.fill_from_s:
            return False
        known.fill_from_s = now + known.origin_pause_s
        return True

    def brought(self, peer: str) -> None:
        """Records a fill by a peer that succeeded."""
        self._peers.setdefault(peer, _Peer()).origin_failures = 0

    def origin_failed(self, peer: str, took_s: float, now: float) -> None:
        """Records that a peer replied after `took_s` that its fill failed."""
        known = self._peers.setdefault(peer, _Peer())
        if took_s < SLOW_ORIGIN_S or now - took_s < known.origin_failed_at_s:
            return  # concurrent requests that fail together count once
        known.origin_failures += 1
        known.origin_failed_at_s = now
        known.fill_from_s = now + known.origin_pause_s

    def take_new_failures(self) -> list[str]:
        """Returns the peers that failed for the first time since their last reply, each once."""
        news, self._news = self._news, []
        return news

    def has_just_failed(self, peer: str) -> bool:
        """Returns whether a peer failed exactly once since its last reply."""
        known = self._peers.get(peer)
        return known is not None and known.failures == 1

    def wrong(self, peer: str, content: bytes, now: float) -> None:
        """Records that a peer sent bytes of a content that do not match their checksum."""
        if len(self._wrong) >= MOST_WRONG:
            self._wrong = {pair: until for pair, until in self._wrong.items() if until > now}
            if len(self._wrong) >= MOST_WRONG:
                self._wrong.clear()
        self._wrong[peer, content] = now + WRONG_S

    def outrun(self, peer: str, now: float) -> None:
        """Records that another replica with a later request replied first."""
        self._peers.setdefault(peer, _Peer()).outrun_until_s = now + OUTRUN_S

    def hedge_after_s(self, peer: str, now: float) -> float:
        """Returns the time after which a request to a peer is hedged, in seconds."""
        known = self._peers.get(peer)
        if known is not None and now < known.outrun_until_s:
            return LEAST_HEDGE_S
        if known is None or known.latency_s < 0:
            return MOST_HEDGE_S / 4
        return min(MOST_HEDGE_S, max(LEAST_HEDGE_S, HEDGE_FACTOR * known.latency_s))

    def keep(self, members: Collection[str]) -> None:
        """Drops the records of all other peers."""
        self._peers = {peer: known for peer, known in self._peers.items() if peer in members}

    def status(self, now: float) -> dict[str, dict[str, float]]:
        """Returns plain values for operators."""
        return {
            peer: {
                "failures": known.failures,
                "avoided_s": round(max(0.0, known.avoid_until_s - now), 3),
                "latency_s": round(max(0.0, known.latency_s), 6),
            }
            for peer, known in self._peers.items()
        }
