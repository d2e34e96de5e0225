"""One view of a worker's process, as `worker.views.view` runs it: built page by page, covered,
compared, uncovered; in steps between which anything may happen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from cachefs.core.errors import CacheFSError
from cachefs.core.pages import split
from tests.simulator import master
from tests.simulator.fetch import PIECE_PAGES
from tests.simulator.mounts import Session
from tests.simulator.names import Listing, ListNames, Shown, is_at_or_below
from tests.simulator.origin import File
from tests.simulator.trees import Tree, record_of
from worker.fill.source import Purpose
from worker.store.view_page import change
from worker.views.cover_table import CoverTable
from worker.views.pace import RebuildPace
from worker.views.view_state import ViewEvent, ViewState, is_shown, moved

if TYPE_CHECKING:
    from tests.simulator.views import NodeViews

UNCOVER_S: Final = 3.0
LOOK_S: Final = 0.05
LAY_AGAIN_S: Final = 30.0
RESUME_UNCOVER_S: Final = 1.0
VALID_S: Final = 4.0  # of names
PAGE_NAMES: Final = 2

Then = Callable[[], None]


class SimView:
    """`number`: of its covers. `is_stopped`: a thaw has begun, nothing new is begun."""

    def __init__(self, node: NodeViews, tree: Tree) -> None:
        self.node = node
        self.process = node.process
        self.tree = tree
        self.number = tree.cover
        self.state = ViewState.RESUMED if tree.cover else ViewState.BUILDING
        self.table = CoverTable[Session](uncertain=bool(tree.cover))
        self.is_resumed = not tree.cover  # the comparison after a start is over
        self.has_given_up = False  # mounts use the names, though some may still be covered
        self._inherited = tree.cover
        self.is_stopped = False
        self._is_busy = False
        self._changes = 0
        self._pace = RebuildPace()
        self._lay_pace = RebuildPace()
        self._due_s = self._lay_s = self._valid_until_s = 0.0
        self._sessions: list[Session] = []
        self._uncovering: list[Then] | None = None

    @property
    def is_inherited(self) -> bool:
        """A client may still have, unread, what an earlier process sent."""
        return bool(self._inherited) and self.number == self._inherited

    def touched_by(self, changed: Collection[bytes] | None) -> bool:
        return changed is None or any(is_at_or_below(path, self.tree.path) for path in changed)

    # ---- mounts ----

    def add(self, session: Session) -> None:
        self._sessions.append(session)
        if self.table.follow(session, session.mountpoint):
            if self.table.is_leaving or self.state is not ViewState.READY:
                session.send_uncover(self.number)
            else:
                session.send_cover(self.number, self.tree)
        if self.state is ViewState.READY:
            self._lay([session])

    def remove(self, session: Session, *, is_followed: bool) -> None:
        if session in self._sessions:
            self._sessions.remove(session)
        others = [one for one in self.table.hosts if one is not session]
        if any(one.mountpoint == session.mountpoint for one in others):
            is_followed = False
        self.table.end(session, session.mountpoint, is_followed=is_followed)
        self.table.check_invariants()

    def reported(self, session: Session, *, covered: bool) -> None:
        was_laid = self.table.is_laid(session)
        self.table.heard(session.mountpoint)
        if self.table.report(session, covered=covered):
            session.send_uncover(self.number)
        self.table.check_invariants()
        if was_laid and not covered and self.state is ViewState.READY:
            self._lay_s = min(self._lay_s, self._lay_pace.next_s(self.process.now_s))

    def _lay(self, sessions: Sequence[Session]) -> None:
        for session in sessions:
            if self.table.lay(session):
                session.send_cover(self.number, self.tree)

    def _lay_all(self) -> None:
        self._lay_s = self.process.now_s + LAY_AGAIN_S
        self._lay(self._sessions)

    # ---- its task ----

    def resume(self) -> None:
        """What an earlier process covered: is it still the same?"""
        if self.state is not ViewState.RESUMED:
            return
        if self.tree.position == self.node.position:
            return self._show_resumed()
        changes = self._changes

        def compared(differs: bool | None) -> None:
            as_before = self.state is ViewState.RESUMED and changes == self._changes
            if differs is False and as_before and not self.is_stopped:
                self._show_resumed()
            else:
                self.give_up_resuming()

        self._compare(compared)

    def give_up_resuming(self) -> None:
        """It is uncovered, but mounts wait no longer for that than so."""
        self.uncover("restart", self._resumed)
        self.process.after(RESUME_UNCOVER_S, self._give_up)

    def _give_up(self) -> None:
        self._resumed()
        self.has_given_up = self._uncovering is not None

    def _resumed(self) -> None:
        self.is_resumed = True

    def _show_resumed(self) -> None:
        self._resumed()
        self._move(ViewEvent.SAME)
        self._valid_until_s = self.process.now_s
        self._lay_all()

    def tick(self) -> None:
        now_s = self.process.now_s
        if self.is_stopped or self._is_busy:
            return
        if self.state is ViewState.READY:
            if now_s >= self._lay_s:
                self._lay_all()
            self.tree.position = self.node.position
            if now_s >= self._valid_until_s:
                self._check()
        elif self._is_due:
            self._build()

    @property
    def _is_due(self) -> bool:
        is_free = self.state is not ViewState.RESUMED and self._uncovering is None
        return is_free and self.process.now_s >= self._due_s

    def _move(self, event: ViewEvent) -> None:
        self.state = moved(self.state, event)

    def _check(self) -> None:
        self._is_busy = True

        def compared(differs: bool | None) -> None:
            self._is_busy = False
            if differs:
                self.uncover("changed", lambda: None)
            self._valid_until_s = self.process.now_s + VALID_S

        self._compare(compared)

    def _compare(self, then: Callable[[bool | None], None]) -> None:
        def listed(answer: object) -> None:
            if not isinstance(answer, Listing):
                return then(None)
            wanted = {path: record_of(file) for path, file in answer.names.items()}
            then(wanted != self.tree.records)

        self.node.server.call(master.URL, ListNames(self.tree.path), listed)

    # ---- building ----

    def _build(self) -> None:
        if self.node.is_being_removed(self.tree.path):
            return
        if self.state is not ViewState.BUILDING:
            self._move(ViewEvent.DUE)
        self._is_busy = True
        changes = self._changes

        def listed(answer: object) -> None:
            if not isinstance(answer, Listing) or self.is_stopped:
                return self._postpone(ViewEvent.FAILED)
            if self.tree.is_unsure:
                self.tree = self.node.replace(self.tree)
                return self._postpone(ViewEvent.FAILED)
            self.tree.cover = 0
            self._apply(answer.names, changes)

        self.node.server.call(master.URL, ListNames(self.tree.path), listed)

    def _postpone(self, event: ViewEvent) -> None:
        self._is_busy = False
        if not self.is_stopped:
            self._move(event)
            self._due_s = self._pace.next_s(self.process.now_s)

    def _apply(self, names: Shown, changes: int) -> None:
        """Page after page; what is missing is loaded, and tried again once."""
        paths = sorted(names)
        pages = [paths[i : i + PAGE_NAMES] for i in range(0, len(paths), PAGE_NAMES)] or [[]]

        def next_page(number: int, *, again: bool = False) -> None:
            if self.is_stopped:
                return self._postpone(ViewEvent.FAILED)
            if number == len(pages):
                return self._finish(changes)
            after = pages[number - 1][-1] if number else b""
            upto = pages[number][-1] if number + 1 < len(pages) else b""
            page = {path: names[path] for path in pages[number]}

            def applied(missing: list[File]) -> None:
                if not missing:
                    return next_page(number + 1)
                if again or self.tree.policy:
                    return self._postpone(ViewEvent.REFUSED)
                self._load(missing, lambda: next_page(number, again=True))

            self._apply_page(page, after, upto, applied)

        next_page(0)

    def _apply_page(
        self, page: Shown, after: bytes, upto: bytes, then: Callable[[list[File]], None]
    ) -> None:
        node, keys = self.node, {file.key for file in page.values()}
        if keys & (node.leaving | node.fenced):
            retry = partial(self._apply_page, page, after, upto, then)
            return self.process.after(LOOK_S, retry)
        node.fenced |= keys

        def job(over: Then) -> None:
            if self.tree.number not in node.host.trees:  # thawed, and removed by now
                node.fenced -= keys
                over()
                return then([*page.values()])
            cache = node.server.cache
            known = {key for key in keys if cache.bits(key)}
            new = cache.hold(keys)
            self.process.after(node.disk_s, lambda: put(over, known, new))

        def put(over: Then, held: set[bytes], new: list[bytes]) -> None:
            tree, is_complete = self.tree, node.server.cache.is_complete
            known = {
                path: record
                for path, record in tree.records.items()
                if path > after and (not upto or path <= upto)
            }
            complete = {
                path: file for path, file in page.items() if file.key in held and is_complete(file)
            }
            records = {path: record_of(file) for path, file in complete.items()}
            gone, fresh = change(known, records)
            tree.unlink(gone)
            released = tree.forget(gone)
            node.fenced |= {*released}
            tree.records.update(fresh)
            missing = [file for path, file in page.items() if path not in complete]
            lacking = {file.key for file in missing}
            released += [key for key in new if key in lacking]
            self.process.after(node.disk_s, lambda: link(over, complete, released, missing))

        def link(over: Then, complete: Shown, released: list[bytes], missing: list[File]) -> None:
            for path, file in complete.items():
                self.tree.link(path, file)
            node.release([key for key in released if key not in self.tree.contents])
            node.fenced -= keys | {*released}
            over()
            then(missing)

        node.turns.take(job)

    def _load(self, files: list[File], then: Then) -> None:
        """One piece after the other; errors are found by the next look."""
        pieces = [(file, *piece) for file in files for piece in split(0, file.pages, PIECE_PAGES)]

        def next_piece(found: object = None) -> None:
            if not pieces or isinstance(found, CacheFSError):
                return then()
            file, first, end = pieces.pop(0)
            self.node.server.get(file, first, end, Purpose.READ, next_piece)

        next_piece()

    def _finish(self, changes: int) -> None:
        number, position = self.node.new_number(), self.node.position

        def recorded() -> None:
            self.tree.cover, self.tree.position = number, position
            if changes != self._changes or self.is_stopped:
                return self._postpone(ViewEvent.FAILED)
            self._is_busy = False
            self.number, self.table = number, CoverTable[Session]()
            self._valid_until_s = self.process.now_s + VALID_S
            self._move(ViewEvent.BUILT)
            self.node.server.world.counts.covered += 1
            self._lay_all()

        if changes != self._changes:
            return self._postpone(ViewEvent.FAILED)
        self.process.after(self.node.disk_s, recorded)

    # ---- uncover first, then act ----

    def uncover(self, reason: str, then: Then) -> None:
        self._changes += 1
        if self._uncovering is None and is_shown(self.state):
            self._move(ViewEvent.CHANGED)
            self._uncovering = [then]
            for session in self.table.leave():
                session.send_uncover(self.number)
            until_s = self.process.now_s + UNCOVER_S
            return self.process.after(0.0, lambda: self._wait(until_s))
        if self._uncovering is not None:
            return self._uncovering.append(then)
        then()

    def _wait(self, until_s: float) -> None:
        """Until no mount has, or gets, a cover."""
        table, host = self.table, self.node.host
        table.check_invariants()
        orphans = table.orphans
        if (orphans or table.uncertain) and host.is_nowhere(self.tree):
            table.settle(orphans)
        if table.is_clear:
            return self._removed(cleared=True)
        if self.process.now_s >= until_s:
            return self._removed(cleared=False)
        self.process.after(LOOK_S, lambda: self._wait(until_s))

    def _removed(self, *, cleared: bool) -> None:
        host, tree = self.node.host, self.tree
        if not cleared:
            host.remove_covers(tree)
        unsure = not cleared or self.is_inherited or host.is_shown(tree)

        def record() -> None:
            tree.cover, tree.is_unsure = 0, unsure
            if unsure:
                return self.process.after(self.node.disk_s, lambda: self.node.turns.take(empty))
            self.process.after(self.node.disk_s, self._uncovered)

        def empty(over: Then) -> None:
            tree.empty()
            over()
            self.process.after(self.node.disk_s, self._uncovered)

        self.process.after(self.node.disk_s, record)

    def _uncovered(self) -> None:
        self._resumed()
        self.has_given_up = False
        self._move(ViewEvent.UNCOVERED)
        self._due_s = self._pace.next_s(self.process.now_s)
        waiting, self._uncovering = self._uncovering or [], None
        for then in waiting:
            then()

    def thawed(self) -> None:
        if self.state is not ViewState.GONE:
            self._move(ViewEvent.THAWED)
