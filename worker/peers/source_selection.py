"""The selection of a source for one read: which peer gets the request, when to hedge, when to give
up. Pure.

A peer that fills (`FILL`, `NEXT`) may take as long as the origin. A `HAVE` request on another
connection probes whether it is alive. A slow peer is hedged by one other peer that may have the
pages. The origin is never a hedge: it is used when no peer is left. A peer that does not reach the
origin is followed by the next candidate, as if it did not reply. After an error that the origin
replied to a peer, only cached pages are requested: other fills would only repeat the request.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from cachefs.core.placement import Member, Placement
from worker.fill.source import Purpose
from worker.peers.peer_health import SLOW_ORIGIN_S, PeerHealth


class RequestMode(enum.Enum):
    """The mode of a request to a peer."""

    HAVE = "have"  # cached pages only
    FILL = "fill"  # to an owner, which fills what it does not have
    NEXT = "next"  # to the stand-in, which fills if the owners do not reply


class Candidate(NamedTuple):
    peer: str  # member id
    url: str
    way: RequestMode
    epoch: int = -1  # of the view that named it


class Answer(enum.Enum):
    HAS = "has"  # a body follows
    HAS_NOT = "has not"  # the pages are not cached there
    NOT_OWNER = "not owner"  # in the peer's view, which differs from this node's
    CUT_OFF = "cut off"  # the peer does not reach the origin, or not in time
    REFUSED = "refused"  # by the origin, whose reply this node would get as well


class Times(NamedTuple):
    """Timeouts in seconds."""

    silence_s: float = 3.0  # of a `HAVE` request
    probe_after_s: float = 1.0  # until a peer that fills is probed
    total_s: float = 45.0  # of a request for a fill


TIMES: Final = Times()


# ---- events --------------------------------------------------------------------------------------


class Answered(NamedTuple):
    candidate: Candidate
    answer: Answer
    at_once: bool = True  # the reply needed no fill: its latency counts for the peer


class Failed(NamedTuple):
    """The peer refused or broke the connection before a reply."""

    candidate: Candidate


class BodyFailed(NamedTuple):
    """The body being read ended early, stalled, or (`wrong`) did not match its checksum."""

    wrong: bool = False


class Refreshed(NamedTuple):
    """The candidates in the newest view."""

    candidates: Sequence[Candidate]


class Tick(NamedTuple):
    """The search begins, or `wake_at_s` has passed."""


Event = Answered | Failed | BodyFailed | Refreshed | Tick


# ---- actions -------------------------------------------------------------------------------------


class Ask(NamedTuple):
    candidate: Candidate


class Close(NamedTuple):
    """Close the request; its reply is not needed."""

    candidate: Candidate


class Take(NamedTuple):
    """Read the body of the candidate's reply."""

    candidate: Candidate


class Refresh(NamedTuple):
    """Fetch the newest view; `Refreshed` follows."""


class UseOrigin(NamedTuple):
    pass


class GiveUp(NamedTuple):
    """No peer has the pages, and the origin must not be used."""


class Fail(NamedTuple):
    """No peer has the pages, and the origin replied an error to one: the read ends with that."""


Action = Ask | Close | Take | Refresh | UseOrigin | GiveUp | Fail

NEVER_S: Final = float("inf")


def candidates(
    now: Placement,
    before: Placement,
    me: str,
    ino: int,
    block: int,
    *,
    epoch: int = -1,
    purpose: Purpose = Purpose.READ,
    replicas: int = 1,
    holders: Sequence[Member] = (),
) -> list[Candidate]:
    """Returns the peers to request pages of a block from, in order, before the origin.
    `before`: the placement from which blocks still migrate. `holders`: other peers with the block.

    A fill for a peer (`SERVE`), and any fill by the primary owner, requests only cached pages. A
    reader's node requests a fill only from owners before it in rank, which avoids deadlock. An
    owner that does not reach the origin (`CUT_OFF`) requests it from all others."""
    ranked = now.owners(ino, block, replicas + 1)
    owners, stand_ins = ranked[:replicas], ranked[replicas:]
    ids = [member.id for member in owners]
    rank = ids.index(me) if me in ids else len(ids)
    is_cut = purpose is Purpose.CUT_OFF
    fillers = owners[:rank] if purpose is Purpose.READ else owners if is_cut else ()
    found = [Candidate(member.id, member.url, RequestMode.FILL, epoch) for member in fillers]
    if found and (rank == len(ids) or is_cut):
        found += [Candidate(member.id, member.url, RequestMode.NEXT, epoch) for member in stand_ins]
    asked = {me, *(one.peer for one in found if one.way is RequestMode.FILL)}
    for member in (*holders, *before.owners(ino, block, replicas), *owners):
        if member.id not in asked:
            asked.add(member.id)
            found.append(Candidate(member.id, member.url, RequestMode.HAVE, epoch))
    return [one for one in found if one.peer != me]


class SourceSelection:
    """The state of one search: at most one request, one hedge and one probe are in flight. `peers`
    is shared with other searches; the caller serialises the calls."""

    def __init__(
        self,
        peers: PeerHealth,
        content: bytes,
        found: Sequence[Candidate],
        times: Times = TIMES,
        *,
        may_ask_origin: bool = True,
    ) -> None:
        self._peers = peers
        self._content = content
        self._times = times
        self._may_ask_origin = may_ask_origin
        self._left = deque(found)
        self._asked: dict[Candidate, float] = {}  # requests in flight, by their start
        self._probe: Candidate | None = None  # one of `_asked`
        self._probe_at_s = NEVER_S
        self._hedge_at_s = NEVER_S
        self._taken: Candidate | None = None
        self._given_up: set[tuple[str, str]] = set()  # (peer, url)
        self._has_hedged = self._has_refreshed = self._has_ended = self._is_refused = False

    @property
    def wake_at_s(self) -> float:
        """The time of the next `Tick`; inf: none is needed."""
        ends = (since + self._limit_s(one) for one, since in self._asked.items())
        return min(self._probe_at_s, self._hedge_at_s, min(ends, default=NEVER_S))

    def handle(self, event: Event, now: float) -> list[Action]:
        """Handles an event and returns the actions. Ignores events of closed candidates."""
        match event:
            case Answered(candidate, answer, at_once):
                return self._answered(candidate, answer, now, at_once=at_once)
            case Failed(candidate):
                return self._failed(candidate, now) if candidate in self._asked else []
            case BodyFailed(wrong):
                return self._broke(now, wrong=wrong)
            case Refreshed(found):
                self._left = self._without_given_up(found)
                return self._next(now)
            case Tick():
                return self._tick(now)

    # ---- replies ----

    def _answered(
        self, candidate: Candidate, answer: Answer, now: float, *, at_once: bool
    ) -> list[Action]:
        since_s = self._asked.pop(candidate, None)
        if since_s is None:
            return []
        known = answer in (Answer.HAS, Answer.HAS_NOT) and at_once
        self._peers.answered(candidate.peer, now - since_s if known else None)
        match answer:
            case Answer.HAS:
                if candidate.way is not RequestMode.HAVE and not at_once:
                    self._peers.brought(candidate.peer)
                for other, asked_s in self._asked.items():
                    if other.peer != candidate.peer and asked_s < since_s:
                        self._peers.outrun(other.peer, now)
                self._taken = candidate
                return [*self._close_all(), Take(candidate)]
            case Answer.NOT_OWNER if not self._has_refreshed:
                self._has_refreshed = True
                return [*self._close_all(), Refresh()]
            case Answer.REFUSED:
                self._peers.origin_failed(candidate.peer, now - since_s, now)
                self._is_refused = True
            case Answer.CUT_OFF:
                self._peers.origin_failed(candidate.peer, now - since_s, now)
                if (
                    now - since_s >= SLOW_ORIGIN_S
                ):  # too little time is left for another peer's fill
                    return [*self._close_all(), self._end()]
        if candidate == self._probe:
            self._probe = None
            self._probe_at_s = now + self._times.probe_after_s
            return []
        return self._lost(candidate, now)

    def _failed(self, candidate: Candidate, now: float) -> list[Action]:
        """Gives up a candidate, and all other requests to the same peer."""
        del self._asked[candidate]
        self._peers.failed(candidate.peer, now)
        self._given_up.add((candidate.peer, candidate.url))
        closed: list[Action] = []
        for other in [*self._asked]:
            if other.peer == candidate.peer:
                del self._asked[other]
                closed += [Close(other)]
        has_refreshed = self._has_refreshed or not self._peers.has_just_failed(candidate.peer)
        if not has_refreshed and not self._asked:
            self._has_refreshed, self._probe = True, None
            return [*closed, Refresh()]  # the peer may have another address now
        return [*closed, *self._lost(candidate, now)]

    def _lost(self, candidate: Candidate, now: float) -> list[Action]:
        """Continues after a request without pages: waits for the other one, or sends the next."""
        probe = self._probe
        if probe is not None and probe.peer == candidate.peer:
            self._probe, self._probe_at_s = None, NEVER_S
            if self._asked.pop(probe, None) is not None:
                return [Close(probe), *self._lost(candidate, now)]
        if any(one != probe for one in self._asked):
            return []
        return self._next(now)

    def _broke(self, now: float, *, wrong: bool) -> list[Action]:
        taken, self._taken = self._taken, None
        if taken is not None:
            self._given_up.add((taken.peer, taken.url))
            if wrong:
                self._peers.wrong(taken.peer, self._content, now)
            else:
                self._peers.failed(taken.peer, now)
        self._left = self._without_given_up(self._left)
        return self._next(now)

    def _without_given_up(self, found: Iterable[Candidate]) -> deque[Candidate]:
        return deque(one for one in found if (one.peer, one.url) not in self._given_up)

    # ---- requests ----

    def _next(self, now: float) -> list[Action]:
        self._probe_at_s = self._hedge_at_s = NEVER_S
        while self._left:
            candidate = self._left.popleft()
            if self._is_refused and candidate.way is not RequestMode.HAVE:
                continue
            if self._peers.take(candidate.peer, self._content, now):
                if candidate.way is not RequestMode.HAVE and not self._peers.may_request_fill(
                    candidate.peer, now
                ):
                    candidate = candidate._replace(way=RequestMode.HAVE)
                self._asked[candidate] = now
                if not self._has_hedged:
                    self._hedge_at_s = now + self._peers.hedge_after_s(candidate.peer, now)
                if candidate.way is not RequestMode.HAVE:
                    self._probe_at_s = now + self._times.probe_after_s
                return [Ask(candidate)]
        return [self._end()]

    def _end(self) -> Action:
        self._has_ended = True
        if not self._may_ask_origin:
            return GiveUp()
        return Fail() if self._is_refused else UseOrigin()

    def _close_all(self) -> list[Action]:
        closed: list[Action] = [Close(one) for one in self._asked]
        self._asked.clear()
        self._probe = None
        self._probe_at_s = self._hedge_at_s = NEVER_S
        return closed

    # ---- time ----

    def _limit_s(self, candidate: Candidate) -> float:
        waits = candidate.way is not RequestMode.HAVE
        return self._times.total_s if waits else self._times.silence_s

    def _tick(self, now: float) -> list[Action]:
        if not self._asked and self._taken is None and not self._has_ended:
            return self._next(now)
        for candidate, since_s in [*self._asked.items()]:
            if now - since_s >= self._limit_s(candidate):
                return [Close(candidate), *self._failed(candidate, now)]
        if now >= self._hedge_at_s:
            self._hedge_at_s = NEVER_S
            return self._hedge(now)
        if now >= self._probe_at_s:
            self._probe_at_s = NEVER_S
            return self._send_probe(now)
        return []

    def _hedge(self, now: float) -> list[Action]:
        busy = {one.peer for one in self._asked}
        for other in self._left:
            may_have = other.way is not RequestMode.NEXT and other.peer not in busy
            if may_have and self._peers.take(other.peer, self._content, now):
                if other.way is RequestMode.HAVE:
                    self._left.remove(other)
                hedge = other._replace(way=RequestMode.HAVE)
                self._has_hedged = True
                self._asked[hedge] = now
                return [Ask(hedge)]
        return []

    def _send_probe(self, now: float) -> list[Action]:
        for candidate in self._asked:
            if candidate.way is not RequestMode.HAVE:
                self._probe = candidate._replace(way=RequestMode.HAVE)
                self._asked[self._probe] = now
                return [Ask(self._probe)]
        return []

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        assert len(self._asked) <= 3
        assert self._probe is None or self._probe in self._asked
        if self._taken is not None:
            assert not self._asked, "a request is in flight while a body is read"
        if self._has_ended:
            assert not self._asked
