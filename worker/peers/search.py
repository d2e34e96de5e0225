"""One read's way through its sources: whom to ask for a page range, when to ask another as well,
when to give one up. Pure.

Peers that would have to bring it (`FILL`, `NEXT`) may take as long as the origin does; whether they
live is found out by asking them, on another connection, what they have. Slow ones are hedged by one
other peer that may have it; never by the origin, which is asked when nobody is left.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from cachefs.core.placement import Member, Placement
from worker.fill.source import Purpose
from worker.peers.peer_health import Peers


class Way(enum.Enum):
    """How a peer is asked."""

    HAVE = "have"  # for what is there
    FILL = "fill"  # the owner: it brings what it does not have
    NEXT = "next"  # the next in rank, which stands in for owners that do not answer


class Candidate(NamedTuple):
    peer: str  # member id
    url: str
    way: Way
    epoch: int = -1  # of the view that named it


class Answer(enum.Enum):
    HAS = "has"  # a body comes
    HAS_NOT = "has not"  # and nothing else is wrong
    NOT_OWNER = "not owner"  # by its view, which is another one than ours
    ORIGIN_FAILED = "origin failed"  # it tried


class Times(NamedTuple):
    """In seconds."""

    silence_s: float = 3.0  # an answer with what is there takes less, or the peer is given up
    probe_after_s: float = 1.0  # then who brings something is asked whether it lives
    total_s: float = 45.0  # for what somebody brings


TIMES: Final = Times()


# ---- events --------------------------------------------------------------------------------------


class Answered(NamedTuple):
    candidate: Candidate
    answer: Answer
    at_once: bool = True  # it had the bytes: the time it took says something of the peer


class Failed(NamedTuple):
    """It refused the connection, or broke it, before an answer."""

    candidate: Candidate


class Broke(NamedTuple):
    """The body that was taken ended early, stalled, or (`wrong`) had other bytes than it should."""

    wrong: bool = False


class Refreshed(NamedTuple):
    """The candidates by the newest view."""

    candidates: Sequence[Candidate]


class Tick(NamedTuple):
    """The search begins, or `wake_at_s` has come."""


Event = Answered | Failed | Broke | Refreshed | Tick


# ---- actions -------------------------------------------------------------------------------------


class Ask(NamedTuple):
    candidate: Candidate


class Close(NamedTuple):
    """Nobody waits for its answer any more."""

    candidate: Candidate


class Take(NamedTuple):
    """Read the body of its answer."""

    candidate: Candidate


class Refresh(NamedTuple):
    """Get the newest view; answered by `Refreshed`."""


class UseOrigin(NamedTuple):
    pass


class GiveUp(NamedTuple):
    """Nobody has it, and the origin is not to be asked."""


Action = Ask | Close | Take | Refresh | UseOrigin | GiveUp

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
    """Whom to ask for pages of a block, in order, the origin after them. `before`: the placement
    while blocks still move from it, in this `epoch`; `holders`: others that are known to have it.

    Whoever brings something for a peer (`SERVE`) asks only for what others have, and so does the
    first owner. A reader's node waits only for those before it in rank."""
    ranked = now.owners(ino, block, replicas + 1)
    owners, stand_ins = ranked[:replicas], ranked[replicas:]
    ids = [member.id for member in owners]
    rank = ids.index(me) if me in ids else len(ids)
    fillers = owners[:rank] if purpose is Purpose.READ else ()
    found = [Candidate(member.id, member.url, Way.FILL, epoch) for member in fillers]
    if found and rank == len(ids):
        found += [Candidate(member.id, member.url, Way.NEXT, epoch) for member in stand_ins]
    asked = {me, *(one.peer for one in found if one.way is Way.FILL)}
    for member in (*holders, *before.owners(ino, block, replicas), *owners):
        if member.id not in asked:
            asked.add(member.id)
            found.append(Candidate(member.id, member.url, Way.HAVE, epoch))
    return [one for one in found if one.peer != me]


class Search:
    """One at a time is waited for, and besides at most one hedge and one probe. `peers` is shared
    with other searches; calls are serialised by the caller."""

    def __init__(
        self,
        peers: Peers,
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
        self._asked: dict[Candidate, float] = {}  # since when
        self._probe: Candidate | None = None  # one of them
        self._probe_at_s = NEVER_S
        self._hedge_at_s = NEVER_S
        self._taken: Candidate | None = None
        self._given_up: set[tuple[str, str]] = set()  # (peer, url)
        self._has_hedged = self._has_refreshed = self._has_ended = False

    @property
    def wake_at_s(self) -> float:
        """When `Tick` is due, whatever else happens."""
        ends = (since + self._limit_s(one) for one, since in self._asked.items())
        return min(self._probe_at_s, self._hedge_at_s, min(ends, default=NEVER_S))

    def handle(self, event: Event, now: float) -> list[Action]:
        """What is to be done. Events about candidates that were closed are ignored."""
        match event:
            case Answered(candidate, answer, at_once):
                return self._answered(candidate, answer, now, at_once=at_once)
            case Failed(candidate):
                return self._failed(candidate, now) if candidate in self._asked else []
            case Broke(wrong):
                return self._broke(now, wrong=wrong)
            case Refreshed(found):
                self._left = self._without_given_up(found)
                return self._next(now)
            case Tick():
                return self._tick(now)

    # ---- answers ----

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
                if candidate.way is not Way.HAVE and not at_once:
                    self._peers.brought(candidate.peer)
                for other, asked_s in self._asked.items():
                    if other.peer != candidate.peer and asked_s < since_s:
                        self._peers.outrun(other.peer, now)
                self._taken = candidate
                return [*self._close_all(), Take(candidate)]
            case Answer.NOT_OWNER if not self._has_refreshed:
                self._has_refreshed = True
                return [*self._close_all(), Refresh()]
            case Answer.ORIGIN_FAILED:
                self._peers.origin_failed(candidate.peer, now - since_s, now)
                return [*self._close_all(), self._end()]
        if candidate == self._probe:
            self._probe = None
            self._probe_at_s = now + self._times.probe_after_s
            return []
        return self._lost(candidate, now)

    def _failed(self, candidate: Candidate, now: float) -> list[Action]:
        """It, and what else was asked of the same peer."""
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
            return [*closed, Refresh()]  # it may be elsewhere by now
        return [*closed, *self._lost(candidate, now)]

    def _lost(self, candidate: Candidate, now: float) -> list[Action]:
        """One that was waited for will not bring it: waits for the other one, or asks the next."""
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

    # ---- questions ----

    def _next(self, now: float) -> list[Action]:
        self._probe_at_s = self._hedge_at_s = NEVER_S
        while self._left:
            candidate = self._left.popleft()
            if self._peers.take(candidate.peer, self._content, now):
                if candidate.way is not Way.HAVE and not self._peers.may_bring(candidate.peer, now):
                    candidate = candidate._replace(way=Way.HAVE)
                self._asked[candidate] = now
                if not self._has_hedged:
                    self._hedge_at_s = now + self._peers.hedge_after_s(candidate.peer, now)
                if candidate.way is not Way.HAVE:
                    self._probe_at_s = now + self._times.probe_after_s
                return [Ask(candidate)]
        return [self._end()]

    def _end(self) -> Action:
        self._has_ended = True
        return UseOrigin() if self._may_ask_origin else GiveUp()

    def _close_all(self) -> list[Action]:
        closed: list[Action] = [Close(one) for one in self._asked]
        self._asked.clear()
        self._probe = None
        self._probe_at_s = self._hedge_at_s = NEVER_S
        return closed

    # ---- time ----

    def _limit_s(self, candidate: Candidate) -> float:
        waits = candidate.way is not Way.HAVE
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
            return self._ask_whether_it_lives(now)
        return []

    def _hedge(self, now: float) -> list[Action]:
        busy = {one.peer for one in self._asked}
        for other in self._left:
            may_have = other.way is not Way.NEXT and other.peer not in busy
            if may_have and self._peers.take(other.peer, self._content, now):
                if other.way is Way.HAVE:
                    self._left.remove(other)
                hedge = other._replace(way=Way.HAVE)
                self._has_hedged = True
                self._asked[hedge] = now
                return [Ask(hedge)]
        return []

    def _ask_whether_it_lives(self, now: float) -> list[Action]:
        for candidate in self._asked:
            if candidate.way is not Way.HAVE:
                self._probe = candidate._replace(way=Way.HAVE)
                self._asked[self._probe] = now
                return [Ask(self._probe)]
        return []

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        assert len(self._asked) <= 3
        assert self._probe is None or self._probe in self._asked
        if self._taken is not None:
            assert not self._asked, "somebody is waited for beside the one that was taken"
        if self._has_ended:
            assert not self._asked
