"""How long the requests of one session may wait. Pure: the caller passes the time.

A system call on a mount may become several requests: names on the way to a file, then the open, or
a read that the kernel asks for once more, in a smaller piece, after the first one failed. Together
they get one deadline. What a request has waited is therefore taken off the time of the next one
about the same inode or handle, if that follows within `CHAIN_S`. Requests do not say which process
makes them. Each wait is therefore taken off one request only, the first that follows.

An open or a read waits for bytes, which may be queued behind other files' bytes at a slow source.
Its deadline therefore counts from the last page that the node received from that source, whatever
file the page belongs to, but ends after `MOST_DEADLINES` deadlines in any case. Requests for names,
and the second request of a read that failed, are not extended so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from cachefs.core import messages as m

GRACE_S: Final = 1.0  # beyond the deadline: the parts below end by themselves, with a better error
CHAIN_S: Final = 1.0  # a request that follows later belongs to another system call
LEAST_S: Final = 0.9  # that the next request of a chain gets in any case
NOTED_S: Final = 1.0  # shorter waits are not noted
MOST_DEADLINES: Final = 10  # of one open or read at a source that goes on sending

Subject = tuple[bytes, int] | int
"""The namespace and an inode number, or a handle."""


MovedS = Callable[[m.Open | m.Ensure], float]
"""Says when a page of the source that a request needs came last (monotonic)."""


class _Spent(NamedTuple):
    """What a system call has waited so far, if its next request comes before `until_s`."""

    subject: Subject
    by: type[m.Message]
    until_s: float
    spent_s: float


class Waiting(NamedTuple):
    """A request under way. Times are monotonic, in seconds. `spent`: by the ones before it."""

    body: m.Message
    subject: Subject
    began_s: float
    spent: _Spent | None
    until_s: float

    @property
    def spent_s(self) -> float:
        return self.spent.spent_s if self.spent is not None else 0.0


class Patience:
    """The requests of one session that wait, by their ids."""

    def __init__(self, deadline_s: float) -> None:
        self._limit_s = deadline_s + GRACE_S
        self._waiting: dict[int, Waiting] = {}
        self._spent: list[_Spent] = []  # the oldest first

    def begin(self, id: int, body: m.Message, now: float) -> None:
        """Notes a request, unless it is of a kind that no system call makes."""
        subject = _subject(body)
        if subject is None:
            return
        spent = self._take_spent(subject, type(body), now) if self._spent else None
        left_s = self._limit_s
        if spent is not None:
            left_s = max(LEAST_S, left_s - spent.spent_s)
        self._waiting[id] = Waiting(body, subject, now, spent, now + left_s)

    def _take_spent(self, subject: Subject, kind: type[m.Message], now: float) -> _Spent | None:
        """Returns what was spent on a subject, and forgets it."""
        self._spent = [one for one in self._spent if now <= one.until_s]
        spent = next((one for one in self._spent if one.subject == subject), None)
        if spent is None:
            return None
        self._spent.remove(spent)
        is_next_call = kind is m.GetAttr and spent.by is m.GetAttr
        return None if is_next_call else spent

    def end(self, id: int, answer: m.Message, now: float) -> None:
        """Notes that a request was answered. Unknown ids are ignored."""
        waiting = self._waiting.pop(id, None)
        subject = _next_subject(waiting, answer) if waiting is not None else None
        if waiting is None or subject is None:
            return
        spent = None if isinstance(waiting.body, m.Ensure) else waiting.spent
        waited_s = now - waiting.began_s
        if waited_s >= NOTED_S:
            before_s = spent.spent_s if spent is not None else 0.0
            spent = _Spent(subject, type(waiting.body), now + CHAIN_S, before_s + waited_s)
        if spent is not None:
            live = [one for one in self._spent if now <= one.until_s]
            self._spent = [*live, spent._replace(subject=subject)]

    def overdue(self, now: float, moved_s: MovedS) -> list[int]:
        """Returns the ids of the requests whose deadline has passed."""
        overdue = [(id, one) for id, one in self._waiting.items() if now >= one.until_s]
        return [id for id, one in overdue if now >= self._extended_s(one, moved_s)]

    def _extended_s(self, waiting: Waiting, moved_s: MovedS) -> float:
        """Returns the deadline of a request, in view of what its source sends."""
        body = waiting.body
        is_again = isinstance(body, m.Ensure) and waiting.spent_s > 0
        if is_again or not isinstance(body, m.Ensure | m.Open):
            return waiting.until_s
        most_s = waiting.began_s - waiting.spent_s + MOST_DEADLINES * self._limit_s
        return max(waiting.until_s, min(moved_s(body) + self._limit_s, most_s))

    def about(self, id: int) -> m.Message | None:
        """The request of an id; None where it has no deadline."""
        waiting = self._waiting.get(id)
        return waiting.body if waiting is not None else None


def _subject(body: m.Message) -> Subject | None:
    """What a request is about; None for those that are not bounded here."""
    if isinstance(body, m.Ensure):
        return body.handle
    if isinstance(body, m.Open | m.GetAttr | m.ListDir):
        return body.namespace, body.ino
    if isinstance(body, m.Lookup):
        return body.namespace, body.parent
    return (body.namespace, 0) if isinstance(body, m.Resolve) else None


def _next_subject(waiting: Waiting, answer: m.Message) -> Subject | None:
    """What the next request of the same system call is about; None where this was the last one.
    After an inode was found, that inode. After a read that failed, the same handle: the kernel asks
    for one page of it again."""
    if isinstance(answer, m.Found) and answer.inode is not None:
        assert not isinstance(waiting.subject, int)
        return waiting.subject[0], answer.inode.ino
    if isinstance(waiting.body, m.Ensure) and isinstance(answer, m.Failure):
        return waiting.subject
    return None
