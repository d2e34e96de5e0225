"""The workers of a namespace, and the epochs of their block ownership. Pure.

`handle(event, now)` decides, the caller acts. If `Outcome.save` is set, the caller makes the record
durable before it sends a reply with the new view. So one epoch never has two placements, even after
a crash.

A worker is serving, draining (owns nothing, moves its blocks away), drained (has moved them) or
lost (silent for `lost_after_s`). If all workers are silent, the master assumes that it is cut off
itself. It then shows them as lost, but they own their blocks until only some of them send again.

The members of a view are the serving workers with a weight. Each change of ownership starts a new
epoch. Its `before` are the live members of the last settled epoch, until every worker that has
blocks to move reports `settled`. `View.version` rises at every change of the view, also of a URL
or `before` alone. Times are monotonic seconds. `master.state.member_record` is the durable part.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from cachefs.core.cluster import (
    LOST_AFTER_S,
    PROTOCOL,
    Beaten,
    Drain,
    Heartbeat,
    Leave,
    Register,
    RemoveWorker,
    WorkerRow,
)
from cachefs.core.errors import BadConfig, InUse, NotFound, ProtocolError, Throttled
from cachefs.core.messages import Done
from cachefs.core.placement import Member, View
from master.state.member_record import Kept, Record
from master.state.twin import Twin

TICK_S: Final = 1.0
ABSENT_AFTER_S: Final = 3.0  # after a tick that late, this process was suspended, not the workers
FORGET_LOST_S: Final = 7 * 86400.0
MAX_WORKERS: Final = 10_000
MOST_BETWEEN: Final = 3  # see `View.between`
MOST_TEXT: Final = 300
MOST_AHEAD: Final = 1 << 40  # epochs that a worker may be ahead of a store that was set back


class State(enum.StrEnum):
    """The state of a worker."""

    SERVING = "serving"
    DRAINING = "draining"
    DRAINED = "drained"
    LOST = "lost"


class Tick(msgspec.Struct, frozen=True):
    """A clock event; the master sends one every `TICK_S`."""


Event = Register | Heartbeat | Leave | Drain | RemoveWorker | Tick


class Outcome(msgspec.Struct, frozen=True):
    """The result of an event. `answer`: View to Register, Beaten to Heartbeat, else Done. `save`:
    the record changed; `changed`: the view changed. `set_back`: a worker knows a later epoch than
    the store. `notes`: lines for the log."""

    answer: View | Beaten | Done
    save: bool = False
    changed: bool = False
    notes: tuple[str, ...] = ()
    set_back: bool = False


class _Member:
    """One worker as the master knows it."""

    __slots__ = (
        *("beat", "drained_from", "draining", "info", "is_recorded"),
        *("lost", "seen_at", "told", "twin"),
    )

    def __init__(self, info: Register, now: float) -> None:
        self.info = info
        self.beat = Heartbeat(info.worker, 0, capacity_bytes=info.capacity_bytes)
        self.seen_at = now
        self.draining = False
        self.drained_from = 0  # the epoch that took its blocks away
        self.lost = False
        self.told = -1  # version of the last view sent to it
        self.is_recorded = False  # True until it is heard: its address may be an earlier one
        self.twin = Twin()

    @property
    def owns(self) -> bool:
        return self.info.weight > 0 and not self.draining and not self.lost

    @property
    def state(self) -> State:
        if self.lost:
            return State.LOST
        if not self.draining:
            return State.SERVING
        done = self.info.weight == 0 or self.beat.settled >= self.drained_from
        return State.DRAINED if done else State.DRAINING

    def member(self) -> Member:
        return Member(self.info.worker, self.info.url, self.info.weight, self.info.host)


class Membership:
    """The workers of one namespace. `record`: from the last master. Its workers keep their state;
    they are lost after `lost_after_s` from `now` without a heartbeat."""

    def __init__(
        self, now: float, record: Record | None = None, lost_after_s: float = LOST_AFTER_S
    ) -> None:
        record = record or Record()
        self._lost_after_s = lost_after_s
        self._workers = {kept.id: _revived(kept, now) for kept in record.workers}
        self._epoch = record.epoch
        self._version = record.version
        self._settled = record.settled  # members of the last settled epoch that still live
        self._unsettled: set[str] = set()
        self._between = record.between
        self._judges_from = now + self._lost_after_s  # no worker is lost before
        self._ticked_at = now
        self._hears_nobody = False
        self._await_settling()
        self._view = self._view_now()

    @property
    def view(self) -> View:
        return self._view

    def record(self) -> Record:
        """Returns the durable record. A mount's own worker (weight 0) registers again, so it is
        included only if it is a member of an earlier epoch."""
        old = {one.id for members in (self._settled, *self._between) for one in members}
        kept = (w for w in self._workers.values() if w.info.weight > 0 or w.info.worker in old)
        workers = tuple(map(_kept, kept))
        return Record(self._epoch, self._version, self._settled, workers, self._between)

    def handle(self, event: Event, now: float) -> Outcome:
        """Applies an event. Raises NotFound, InUse, BadConfig, ProtocolError or Throttled, and
        then changes nothing."""
        return _HANDLERS[type(event)](self, event, now)

    def _register(self, event: Register, now: float) -> Outcome:
        _check(event)
        old = self._workers.get(event.worker)
        if old is None and len(self._workers) >= MAX_WORKERS:
            raise Throttled(f"there are {MAX_WORKERS} workers", remedy="remove lost ones")
        worker = _Member(event, now)
        if old is not None:
            worker.draining, worker.drained_from = old.draining, old.drained_from
        self._heard(now)
        self._workers[event.worker] = worker
        notes = [_registered(event, old), *self._displace(worker)]
        is_same = old is not None and _kept(old) == _kept(worker)
        set_back = self._is_behind(event.epoch)
        changed = self._overtake(event.epoch) if set_back else self._refresh()
        worker.told = self._version
        save = changed or (not is_same and event.weight > 0)
        return Outcome(self._view, save, changed, tuple(notes), set_back)

    def _displace(self, new: _Member) -> Iterator[str]:
        """Marks earlier workers at the same address as lost (an emptied tier has a new id)."""
        for other in self._workers.values():
            if other is new or other.lost or _place(other.info) != _place(new.info):
                continue
            other.lost = True
            yield f"{_shown(other.info)} is lost: another worker has its address"

    def _heartbeat(self, event: Heartbeat, now: float) -> Outcome:
        worker = self._workers.get(event.worker)
        if worker is None or worker.lost:
            return Outcome(Beaten(known=False))
        if event.url and event.url != worker.info.url:
            return self._heartbeat_elsewhere(worker, event, now)
        self._heard(now)
        worker.is_recorded = False
        worker.seen_at = now
        worker.beat = event
        set_back = self._is_behind(event.epoch)
        if set_back:
            changed = self._overtake(event.epoch, event.version)
        else:
            changed = event.worker in self._unsettled and self._settles(event)
        view = self._view if self._needs_view(worker, event) else None
        if view is not None:
            worker.told = self._version
        return Outcome(Beaten(view, True, worker.draining), changed, changed, set_back=set_back)

    def _heartbeat_elsewhere(self, worker: _Member, event: Heartbeat, now: float) -> Outcome:
        """Answers a process that has the id of a worker at another address. If the address is from
        the record of an earlier master, the process registers again. Else it is a twin: it gets the
        views, so that it fills no block by an old one, and is no sign of life of the worker."""
        if worker.is_recorded:
            return Outcome(Beaten(known=False))
        shown = f"{_shown(worker.info)} has a twin at {_address(event.url)}: one has a copied tier"
        notes = (shown,) if worker.twin.hear(event.url, now) else ()
        view = self._view if self._needs_view(worker, event) else None
        return Outcome(Beaten(view, True, worker.draining), notes=notes)

    def _needs_view(self, worker: _Member, beat: Heartbeat) -> bool:
        if beat.epoch != self._epoch:
            return True
        return (worker.told if beat.version < 0 else beat.version) != self._version

    def _settles(self, beat: Heartbeat) -> bool:
        """Records a settled worker; returns whether the view changed: it was the last one."""
        if beat.settled < self._epoch or beat.epoch != self._epoch:
            return False
        self._unsettled.discard(beat.worker)
        return not self._unsettled and self._refresh()

    def _is_behind(self, epoch: int) -> bool:
        """Returns whether a worker knows a later epoch than the store, which was set back then."""
        return self._epoch < epoch <= self._epoch + MOST_AHEAD

    def _overtake(self, epoch: int, version: int = -1) -> bool:
        """Continues with epochs above those in use, after the store was set back."""
        self._epoch = epoch + 1
        self._version = max(self._version, version)
        self._await_settling()
        return self._refresh()

    def _leave(self, event: Leave, now: float) -> Outcome:
        """Removes a worker, but keeps a draining one as lost: a restart does not undo the drain."""
        worker = self._workers.get(event.worker)
        if worker is None or _is_of_another_process(event, worker.info):
            return Outcome(Done())
        if worker.draining and worker.info.weight > 0:
            worker.lost = True
        else:
            del self._workers[event.worker]
        return self._done(worker, "left")

    def _heard(self, now: float) -> None:
        """Ends a time in which all workers were silent; the others get the full timeout again."""
        if self._hears_nobody:
            self._hears_nobody = False
            self._judges_from = now + self._lost_after_s

    def _tick(self, event: Tick, now: float) -> Outcome:
        if now - self._ticked_at > ABSENT_AFTER_S:
            self._judges_from = now + self._lost_after_s
        self._ticked_at = now
        if now < self._judges_from:
            return Outcome(Done())
        gone = [w for w in self._workers.values() if w.seen_at <= now - self._lost_after_s]
        alive = sum(not worker.lost for worker in self._workers.values())
        if alive and alive == sum(not worker.lost for worker in gone):
            notes = () if self._hears_nobody else ("no worker is heard: is the network cut off?",)
            self._hears_nobody = True
            return Outcome(Done(), notes=notes)
        return self._lose_all(gone, now)

    def _lose_all(self, gone: Iterable[_Member], now: float) -> Outcome:
        notes = [note for worker in gone if (note := self._lose(worker, now))]
        if not notes:
            return Outcome(Done())
        changed = self._refresh()
        save = changed or any(worker.info.weight > 0 for worker in gone)
        return Outcome(Done(), save, changed, tuple(notes))

    def _lose(self, worker: _Member, now: float) -> str:
        """Marks a silent worker as lost; removes it after a week, a mount's own worker at once."""
        id = worker.info.worker
        if worker.info.weight == 0:
            del self._workers[id]
            return f"{_shown(worker.info)} of a mount is gone"
        if not worker.lost:
            worker.lost = True
            return f"{_shown(worker.info)} is lost: silent for {now - worker.seen_at:.1f} s"
        if worker.seen_at <= now - FORGET_LOST_S:
            del self._workers[id]
            return f"{_shown(worker.info)} is forgotten: lost for a week"
        return ""

    def _drain(self, event: Drain, now: float) -> Outcome:
        worker = self._named(event.worker)
        if worker.draining is not event.undo:
            return Outcome(Done())
        worker.draining = not event.undo
        what = "serves again" if event.undo else "is to hand over what it has"
        outcome = self._done(worker, what)
        worker.drained_from = self._epoch
        return outcome

    def _remove(self, event: RemoveWorker, now: float) -> Outcome:
        worker = self._named(event.worker)
        state = self._state(worker)
        if state is not State.LOST:  # it lives: its next heartbeat would register it again
            is_empty = state is State.DRAINED
            raise InUse(
                f"{_shown(worker.info)} is {state}, and its process lives",
                remedy="stop its process first" if is_empty else "drain it first, then stop it",
            )
        del self._workers[worker.info.worker]
        return self._done(worker, "is removed")

    def _named(self, name: str) -> _Member:
        """Finds a worker by id, host:port or unique id prefix. Raises NotFound, BadConfig."""
        exact = self._workers.get(name)
        if exact is not None:
            return exact
        workers = self._workers.values()
        found = [w for w in workers if _address(w.info.url) == name]
        found = found or [w for w in workers if name and w.info.worker.startswith(name)]
        if not found:
            raise NotFound(f"no worker {name}", remedy="`cachefs workers` lists them")
        if len(found) > 1:
            raise BadConfig(f"{len(found)} workers match {name}", remedy="give more of the id")
        return found[0]

    def _state(self, worker: _Member) -> State:
        """Returns the state that operators see."""
        return State.LOST if self._hears_nobody else worker.state

    def rows(self, now: float) -> list[WorkerRow]:
        """Returns the rows of all workers, by host and URL."""
        workers = sorted(self._workers.values(), key=lambda w: (w.info.host, w.info.url))
        return [self._row(worker, now) for worker in workers]

    def _row(self, worker: _Member, now: float) -> WorkerRow:
        twin_url = worker.twin.url_now(now, self._lost_after_s)
        return _row(worker, self._state(worker), now, twin_url)

    def counts(self) -> dict[str, int]:
        """Returns the number of workers in every state, zeros included."""
        counts = dict.fromkeys(map(str, State), 0)
        for worker in self._workers.values():
            counts[self._state(worker).value] += 1
        return counts

    def _done(self, worker: _Member, what: str) -> Outcome:
        changed = self._refresh()
        save = changed or worker.info.weight > 0
        return Outcome(Done(), save, changed, (f"{_shown(worker.info)} {what}",))

    def _refresh(self) -> bool:
        """Updates the view from the workers; returns whether it changed."""
        self._settled = tuple(self._living(self._settled))
        members = self._members()
        moved = _shares(members) != _shares(self._view.members)
        if moved:
            self._epoch += 1
            passed = [self._view.members] if self._view.before else []
            self._between = (*self._between, *passed)[-MOST_BETWEEN:]
        self._await_settling(forget=moved)
        view = self._view_now()
        if view == self._view:
            return False
        self._version += 1
        self._view = msgspec.structs.replace(view, version=self._version)
        return True

    def _await_settling(self, *, forget: bool = True) -> None:
        """Updates the set of workers with blocks to move in this epoch; `forget`: waits for all."""
        members = self._members()
        waited_for = {m.id for m in (*members, *self._settled)}
        self._unsettled = waited_for if forget else self._unsettled & waited_for
        if not self._unsettled or not self._settled or _shares(self._settled) == _shares(members):
            self._settled = members
            self._unsettled, self._between = set(), ()

    def _living(self, members: Iterable[Member]) -> Iterator[Member]:
        """Yields the members that are not lost, with current addresses and their old weights."""
        for member in members:
            worker = self._workers.get(member.id)
            if worker is not None and not worker.lost:
                yield msgspec.structs.replace(worker.member(), weight=member.weight)

    def _members(self) -> tuple[Member, ...]:
        owning = (w.member() for w in self._workers.values() if w.owns)
        return tuple(sorted(owning, key=lambda member: member.id))

    def _view_now(self) -> View:
        members = self._members()
        before = () if _shares(self._settled) == _shares(members) else self._settled
        between = tuple(tuple(self._living(passed)) for passed in self._between)
        return View(self._epoch, members, before, self._version, between)

    def check_invariants(self) -> None:
        """Checks the invariants, for tests and the simulator. Raises AssertionError."""
        view, alive = self._view, {w.info.worker for w in self._workers.values() if not w.lost}
        assert {m.id for m in (*view.members, *view.before)} <= alive, (
            "a lost member is in the view"
        )
        assert all(m.weight > 0 for m in view.members), "a member without a weight"
        assert bool(view.before) == bool(self._unsettled), "moves are awaited, or nothing moves"
        assert view == self._view_now(), "the view is what the workers are"


def _shares(members: tuple[Member, ...]) -> list[tuple[str, float]]:
    """Returns the part of the members on which placement depends."""
    return sorted((member.id, member.weight) for member in members)


def _check(event: Register) -> None:
    if abs(event.protocol - PROTOCOL) > 1:
        raise ProtocolError(
            f"protocol {event.protocol} of the worker is too far from {PROTOCOL}",
            remedy="install the same version of cachefs on both",
        )
    if not event.worker or not 0 <= event.weight < math.inf:
        raise BadConfig("a worker registers with an id, a URL and a weight of 0 or more")
    # Every view carries these texts to every worker.
    if max(map(len, (event.worker, event.url, event.host, event.version))) > MOST_TEXT:
        raise BadConfig(f"a worker's id, URL and host have at most {MOST_TEXT} characters")
    if not event.url.startswith(("http://", "https://")) or not _address(event.url):
        raise BadConfig(f"a worker cannot be reached at {event.url!r}")


def _is_of_another_process(event: Leave, info: Register) -> bool:
    return 0 not in (event.process, info.process) and event.process != info.process


def _revived(kept: Kept, now: float) -> _Member:
    info = Register(kept.id, kept.url, kept.weight, kept.host, kept.capacity_bytes, kept.version)
    worker = _Member(info, now)
    worker.draining, worker.drained_from, worker.lost = kept.draining, kept.drained_from, kept.lost
    worker.is_recorded = True
    return worker


def _kept(worker: _Member) -> Kept:
    info = worker.info
    return Kept(
        info.worker,
        info.url,
        info.weight,
        info.host,
        info.capacity_bytes,
        info.version,
        worker.draining,
        worker.lost,
        worker.drained_from,
    )


def _row(worker: _Member, state: State, now: float, twin_url: str) -> WorkerRow:
    info, beat = worker.info, worker.beat
    return WorkerRow(
        info.worker,
        info.url,
        info.host,
        state.value,
        info.weight,
        beat.capacity_bytes or info.capacity_bytes,
        beat.used_bytes,
        beat.epoch,
        beat.settled,
        round(max(0.0, now - worker.seen_at), 3),
        info.version,
        beat.facts,
        twin_url,
    )


def _place(info: Register) -> tuple[str, str]:
    """Returns the key of an address; a loopback address is unique only with its host."""
    return info.host, info.url


def _address(url: str) -> str:
    return url.partition("://")[2].rstrip("/")


def _shown(info: Register) -> str:
    return f"worker {info.worker[:8]} at {_address(info.url)}"


def _registered(event: Register, old: _Member | None) -> str:
    if old is None:
        return f"{_shown(event)} registers with weight {event.weight:g}"
    back = "is back" if old.lost else "registers again"
    moved = "" if old.info.url == event.url else f", before at {_address(old.info.url)}"
    return f"{_shown(event)} {back}{moved}"


_HANDLERS: dict[type, Callable[[Membership, Any, float], Outcome]] = {
    Register: Membership._register,
    Heartbeat: Membership._heartbeat,
    Leave: Membership._leave,
    Drain: Membership._drain,
    RemoveWorker: Membership._remove,
    Tick: Membership._tick,
}
