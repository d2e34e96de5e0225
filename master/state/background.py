"""When which source is walked in the background. Pure.

A *rule* is a path with a policy `sync_background`, or the root of a source that inherits one. It is
due once per interval, counted from the beginning of its last complete walk: a change that this walk
missed is seen at most an interval and the duration of one walk later. A *request* is for one walk
of a whole source. One walk per source runs at a time, and at most `MOST_AT_ONCE` in all. After a
walk with errors its target pauses, longer each time, and the walks of other targets take their
turns. The source pauses too, until one of its walks is complete: it may be down. Times are wall
seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from cachefs.core.policies import above

MOST_AT_ONCE: Final = 2
JITTER: Final = 0.1  # up to this share of the interval earlier: rules set together drift apart
RETRY_S: Final = 10.0  # after the first walk with errors; doubled with each further one
MAX_RETRY_S: Final = 3600.0  # of a rule, or its interval if that is longer
_MOST_DOUBLINGS: Final = 30

At = Callable[[bytes], float]


class SourceId(NamedTuple):
    """A source at a root of the mount table: the root of the namespace outlives its sources."""

    root: int
    key: str


class Target(NamedTuple):
    """What one walk compares. `path`: of a rule, in the namespace; None: the whole source."""

    source: SourceId
    path: bytes | None


class Walked(msgspec.Struct, frozen=True):
    """The last complete walk of a target; 0: none. `requested`: one more is owed to a request."""

    began_at: float = 0.0
    ended_at: float = 0.0
    requested: bool = False


class Rules(NamedTuple):
    """Event: the present sources, and the interval in s of each rule."""

    rules: Mapping[SourceId, Mapping[bytes, float]]


class Requested(NamedTuple):
    """Event: some part of this source may have changed unnoticed."""

    source: SourceId


class Ended(NamedTuple):
    """Event: a walk ended. `complete`: it compared everything, without an error."""

    target: Target
    complete: bool


Event = Rules | Requested | Ended


class Start(NamedTuple):
    """Action: begin a walk. Each is answered by one `Ended`."""

    target: Target


class Stop(NamedTuple):
    """Action: end a walk, whose target has no rule or no source any more."""

    target: Target


class Save(NamedTuple):
    """Action: make this durable, instead of what was saved for the target before."""

    target: Target
    walked: Walked


class Forget(NamedTuple):
    """Action: delete what was saved for the target."""

    target: Target


Action = Start | Stop | Save | Forget


class _Pause:
    """The pause after walks with errors, `most_s` at most."""

    def __init__(self, most_s: float = MAX_RETRY_S) -> None:
        self.most_s = most_s
        self.failures = 0
        self.until = 0.0

    def lengthen(self, now: float, chance: float) -> None:
        wait_s = min(self.most_s, RETRY_S * 2.0 ** min(self.failures, _MOST_DOUBLINGS))
        self.failures += 1
        self.until = now + wait_s * (1 - JITTER * chance)

    def end(self) -> None:
        self.failures, self.until = 0, 0.0

    def correct(self, now: float) -> None:
        self.until = min(self.until, now + self.most_s)


class _Rule:
    def __init__(self, interval_s: float, walked: Walked, due_at: float) -> None:
        self.interval_s = interval_s
        self.walked = walked
        self.due_at = due_at
        self.pause = _Pause(max(MAX_RETRY_S, interval_s))


class _Source:
    def __init__(self, whole: Walked) -> None:
        self.rules: dict[bytes, _Rule] = {}
        self.whole = whole
        self.requested_at: float | None = None  # a walk is owed that has not begun
        self.whole_pause = _Pause()  # after walks for requests
        self.pause = _Pause()  # after any

    def correct(self, now: float) -> None:
        """Corrects the times of a wall clock that was set back."""
        for pause in (self.pause, self.whole_pause):
            pause.correct(now)
        for rule in self.rules.values():
            rule.due_at = min(rule.due_at, now + rule.interval_s)
            rule.pause.correct(now)

    def pause_of(self, path: bytes | None) -> _Pause:
        return self.whole_pause if path is None else self.rules[path].pause

    def due(self) -> tuple[float, bytes | None] | None:
        """Returns when the next walk is due, and which; None if there is none. A request goes
        before the rules until its walk had errors."""
        times = ((max(rule.due_at, rule.pause.until), path) for path, rule in self.rules.items())
        found: tuple[float, bytes | None] | None = min(times, default=None)
        if self.requested_at is not None:
            at = max(self.requested_at, self.whole_pause.until)
            if found is None or not self.whole_pause.failures or at <= found[0]:
                found = at, None
        return None if found is None else (max(found[0], self.pause.until), found[1])


class BackgroundPlan:
    """The decisions of one master. `chance` returns numbers in [0, 1)."""

    def __init__(self, saved: Iterable[tuple[Target, Walked]], chance: Callable[[], float]) -> None:
        self._saved = dict(saved)  # what is durable
        self._chance = chance
        self._sources: dict[SourceId, _Source] = {}
        self._running: dict[Target, float] = {}  # when each began
        self._stopped: set[Target] = set()  # of these

    def handle(self, event: Event | None, now: float) -> list[Action]:
        """Returns what to do, in order. None: only the time has passed."""
        actions: list[Action] = []
        if isinstance(event, Rules):
            self._take_rules(event.rules, now, actions)
        elif isinstance(event, Requested):
            self._request(event.source, now, actions)
        elif isinstance(event, Ended):
            self._end(event, now, actions)
        self._start(now, actions)
        return actions

    def _take_rules(
        self,
        found: Mapping[SourceId, Mapping[bytes, float]],
        now: float,
        actions: list[Action],
    ) -> None:
        for gone in self._sources.keys() - found.keys():
            del self._sources[gone]
        for source, rules in found.items():
            kept = self._sources.get(source) or self._new_source(source, now)
            for path in kept.rules.keys() - rules.keys():
                del kept.rules[path]
            for path, interval_s in rules.items():
                self._take_rule(source, kept, path, interval_s, now)
        for target in [one for one in self._running if not self._is_wanted(one)]:
            self._stop(target, actions)
        for target in [one for one in self._saved if not self._is_wanted(one)]:
            del self._saved[target]
            actions.append(Forget(target))

    def _new_source(self, source: SourceId, now: float) -> _Source:
        whole = self._saved.get(Target(source, None), Walked())
        made = self._sources[source] = _Source(whole)
        made.requested_at = now if whole.requested else None
        return made

    def _take_rule(
        self, source: SourceId, kept: _Source, path: bytes, interval_s: float, now: float
    ) -> None:
        rule = kept.rules.get(path)
        if rule is not None and rule.interval_s == interval_s:
            return
        walked = self._saved.get(Target(source, path), Walked())
        kept.rules[path] = _Rule(interval_s, walked, self._due(walked, interval_s, now))

    def _due(self, walked: Walked, interval_s: float, now: float) -> float:
        """Returns when a rule is due. A new one is due soon."""
        early_s = interval_s * JITTER * self._chance()
        if not walked.began_at:
            return now + early_s
        return min(walked.began_at, now) + interval_s - early_s

    def _is_wanted(self, target: Target) -> bool:
        source = self._sources.get(target.source)
        return source is not None and (target.path is None or target.path in source.rules)

    def _stop(self, target: Target, actions: list[Action]) -> None:
        if target not in self._stopped:
            self._stopped.add(target)
            actions.append(Stop(target))

    def _request(self, source: SourceId, now: float, actions: list[Action]) -> None:
        """Owes the source a walk that begins after now; one for all requests until it begins."""
        kept = self._sources.get(source)
        if kept is None or kept.requested_at is not None:
            return
        kept.requested_at = now
        if not kept.whole.requested:
            self._save_whole(source, kept, kept.whole.began_at, kept.whole.ended_at, actions)

    def _save_whole(
        self, source: SourceId, kept: _Source, began_at: float, ended_at: float,
        actions: list[Action],
    ) -> None:  # fmt: skip
        kept.whole = Walked(began_at, ended_at, kept.requested_at is not None)
        self._save(Target(source, None), kept.whole, actions)

    def _save(self, target: Target, walked: Walked, actions: list[Action]) -> None:
        self._saved[target] = walked
        actions.append(Save(target, walked))

    def _start(self, now: float, actions: list[Action]) -> None:
        busy = {target.source for target in self._running}
        waiting = []
        for source, kept in self._sources.items():
            kept.correct(now)
            due = kept.due()
            if due is not None and due[0] <= now and source not in busy:
                waiting.append((due[0], source, due[1]))
        waiting.sort(key=lambda one: one[0])
        for _, source, path in waiting[: max(0, MOST_AT_ONCE - len(self._running))]:
            target = Target(source, path)
            self._running[target] = now
            if path is None:
                self._sources[source].requested_at = None
            actions.append(Start(target))

    def _end(self, event: Ended, now: float, actions: list[Action]) -> None:
        target = event.target
        began_at = self._running.pop(target)
        was_stopped = target in self._stopped
        self._stopped.discard(target)
        kept = self._sources.get(target.source)
        if kept is None or was_stopped:
            return
        if event.complete:
            self._completed(target, kept, Walked(began_at, now), actions)
        else:
            self._failed(target, kept, now)

    def _completed(
        self, target: Target, kept: _Source, walked: Walked, actions: list[Action]
    ) -> None:
        kept.pause.end()
        kept.pause_of(target.path).end()
        if target.path is None:
            self._save_whole(target.source, kept, walked.began_at, walked.ended_at, actions)
        for path, rule in kept.rules.items():
            if target.path in (None, path):  # a walk of the whole source is one of each rule
                rule.walked = walked
                rule.pause.end()
                rule.due_at = self._due(walked, rule.interval_s, walked.ended_at)
                self._save(Target(target.source, path), walked, actions)

    def _failed(self, target: Target, kept: _Source, now: float) -> None:
        if target.path is None and kept.requested_at is None:
            kept.requested_at = now
        for pause in (kept.pause, kept.pause_of(target.path)):
            pause.lengthen(now, self._chance())

    def last_at(self, source: SourceId) -> float:
        """Returns when the last complete walk of a source began: of its rules the oldest, without
        rules the one of the last request; 0: there was none."""
        kept = self._sources.get(source)
        if kept is None:
            return 0.0
        began = [rule.walked.began_at for rule in kept.rules.values()]
        return min(began, default=kept.whole.began_at)

    def next_at(self, source: SourceId) -> float:
        """Returns when the next walk of a source is due; 0: none is."""
        kept = self._sources.get(source)
        due = None if kept is None else kept.due()
        return 0.0 if due is None else due[0]

    def retry_at(self, target: Target) -> float:
        """Returns when the next try of a target that failed is due; 0: it has no more rule."""
        kept = self._sources.get(target.source)
        if kept is None or not self._is_wanted(target):
            return 0.0
        return max(kept.pause.until, kept.pause_of(target.path).until)

    def running(self, source: SourceId) -> bool:
        return any(target.source == source for target in self._running)

    def check_invariants(self) -> None:
        """Raises AssertionError if a limit is exceeded or a request is forgotten."""
        assert len(self._running) <= MOST_AT_ONCE
        assert len({target.source for target in self._running}) == len(self._running)
        assert self._stopped <= self._running.keys()
        for target, _ in self._running.items():
            assert self._is_wanted(target) or target in self._stopped
        for source, kept in self._sources.items():
            whole = Target(source, None)
            owed = kept.requested_at is not None or (
                whole in self._running and whole not in self._stopped
            )
            assert kept.whole.requested == owed, "what is owed is durable, and nothing else"


class Placed(NamedTuple):
    """The rules of each source, with their intervals in s. `starts`: the paths at which walks of
    other rules and sources start, or with the policy `none`: no walk of a rule enters them."""

    rules: dict[SourceId, dict[bytes, float]]
    starts: frozenset[bytes]


def placed(sources: Mapping[bytes, SourceId], own: Mapping[bytes, float], at: At) -> Placed:
    """Returns the rules. `sources`: by the paths of their roots. `own`: what policies set at their
    own paths; 0: none. `at` returns what is inherited at a path."""
    starts = {**own, **{root: at(root) for root in sources}}
    found: dict[SourceId, dict[bytes, float]] = {source: {} for source in sources.values()}
    for path, interval_s in starts.items():
        root = next((one for one in above(path) if one in sources), None)
        if root is not None and interval_s:
            found[sources[root]][path] = interval_s
    return Placed(found, frozenset(starts))


class WalkStatus:
    """What the background walks of a source did since the master's start, and when the next is
    due. Times are wall seconds; 0: none."""

    def __init__(self) -> None:
        self.walks = 0  # complete ones
        self.directories = 0
        self.changes = 0
        self.errors = 0
        self.last_at = 0.0  # as of `BackgroundPlan.last_at`
        self.next_at = 0.0
        self.running = False
        self.error = ""  # of the last walk

    def ended(self, directories: int, changes: int, errors: int, message: str) -> None:
        """Counts a walk that ended."""
        self.directories += directories
        self.changes += changes
        self.errors += errors
        self.error = message

    def status(self) -> dict[str, Any]:
        """Returns plain values for `cachefs status`."""
        return {f"background_{name}": value for name, value in vars(self).items()}
