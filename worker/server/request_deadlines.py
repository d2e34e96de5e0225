"""The deadlines of one session's requests. Pure: the caller passes the time.

A system call on a mount may cause several requests: lookups on the path, then the open; or a read
that the kernel repeats in a smaller piece after the first one failed. Together they get one
deadline: the wait of a request is subtracted from the time of the next request for the same inode
or handle, if that arrives within `CHAIN_S`. Requests do not identify their process, so a wait is
subtracted only once, from the first request that follows.

An open or a read waits for bytes, which may be queued behind other files' bytes at a slow source.
So its deadline counts from the last page that the node received from that source, for any file. It
ends after `MOST_DEADLINES` deadlines in any case. Requests for names, and the repeated request of a
failed read, are not extended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from cachefs.core import messages as m

GRACE_S: Final = 1.0  # beyond the deadline: lower layers time out first, with a better error
CHAIN_S: Final = 1.0  # a later request belongs to another system call
LEAST_S: Final = 0.9  # the least time of the next request of a system call
NOTED_S: Final = 1.0  # shorter waits are ignored
MOST_DEADLINES: Final = 10  # of one open or read at a source that keeps sending

Subject = tuple[bytes, int] | int
"""The namespace and an inode number, or a handle."""


MovedS = Callable[[m.Open | m.Ensure], float]
"""Returns the time of the last page from the source of a request's file (monotonic)."""


class _Spent(NamedTuple):
    """The time that a system call has waited, valid if its next request arrives by `until_s`."""

    subject: Subject
    by: type[m.Message]
    until_s: float
    spent_s: float


class Waiting(msgspec.Struct, frozen=True):
    """A request in flight. Times are monotonic, in seconds. `spent`: by the requests before it."""

    body: m.Message
    subject: Subject
    began_s: float
    spent: _Spent | None
    until_s: float

    @property
    def spent_s(self) -> float:
        return self.spent.spent_s if self.spent is not None else 0.0


class RequestDeadlines:
    """The deadlines of one session's requests in flight, by their ids."""

    def __init__(self, deadline_s: float) -> None:
        self._limit_s = deadline_s + GRACE_S
        self._waiting: dict[int, Waiting] = {}
        self._spent: list[_Spent] = []  # the oldest first

    def begin(self, id: int, body: m.Message, now: float) -> None:
        """Starts the deadline of a request, if system calls make requests of its kind."""
        subject = _subject(body)
        if subject is None:
            return
        spent = self._take_spent(subject, type(body), now) if self._spent else None
        left_s = self._limit_s
        if spent is not None:
            left_s = max(LEAST_S, left_s - spent.spent_s)
        self._waiting[id] = Waiting(body, subject, now, spent, now + left_s)

    def _take_spent(self, subject: Subject, kind: type[m.Message], now: float) -> _Spent | None:
        """Removes and returns the time spent on a subject."""
        self._spent = [one for one in self._spent if now <= one.until_s]
        spent = next((one for one in self._spent if one.subject == subject), None)
        if spent is None:
            return None
        self._spent.remove(spent)
        is_next_call = kind is m.GetAttr and spent.by is m.GetAttr
        return None if is_next_call else spent

    def end(self, id: int, answer: m.Message, now: float) -> None:
        """Ends a request at its reply. Unknown ids are ignored."""
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
        """Returns the deadline of a request, extended while its source sends pages."""
        body = waiting.body
        is_again = isinstance(body, m.Ensure) and waiting.spent_s > 0
        if is_again or not isinstance(body, m.Ensure | m.Open):
            return waiting.until_s
        most_s = waiting.began_s - waiting.spent_s + MOST_DEADLINES * self._limit_s
        return max(waiting.until_s, min(moved_s(body) + self._limit_s, most_s))

    def about(self, id: int) -> m.Message | None:
        """Returns the request of an id; None if it has no deadline."""
        waiting = self._waiting.get(id)
        return waiting.body if waiting is not None else None


def _subject(body: m.Message) -> Subject | None:
    """Returns the inode or handle of a request; None if it has no deadline."""
    if isinstance(body, m.Ensure):
        return body.handle
    if isinstance(body, m.Open | m.GetAttr | m.ListDir):
        return body.namespace, body.ino
    if isinstance(body, m.Lookup):
        return body.namespace, body.parent
    return (body.namespace, 0) if isinstance(body, m.Resolve) else None


def _next_subject(waiting: Waiting, answer: m.Message) -> Subject | None:
    """Returns the subject of the system call's next request; None after its last one. For an inode
    that was found, the inode; for a failed read, its handle: the kernel reads one page again."""
    if isinstance(answer, m.Found) and answer.inode is not None:
        assert not isinstance(waiting.subject, int)
        return waiting.subject[0], answer.inode.ino
    if isinstance(waiting.body, m.Ensure) and isinstance(answer, m.Failure):
        return waiting.subject
    return None
