"""The views of one worker's process: it follows the names, freezes and thaws, and tells mounts. How
one view goes on is in `tests.simulator.view`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from tests.simulator import master
from tests.simulator.mounts import Session
from tests.simulator.names import Events, GetEvents, is_at_or_below, is_near
from tests.simulator.schedule import Process
from tests.simulator.trees import Tree, Turns
from tests.simulator.view import RESUME_UNCOVER_S, SimView

if TYPE_CHECKING:
    from tests.simulator.worker import WorkerServer

POLL_S: Final = 0.2  # between two questions for events
TICK_S: Final = 0.1
RESUME_S: Final = 5.0  # a mount waits so long for the comparison after a start
BATCH_NAMES: Final = 2  # of a removal
RETRY_S: Final = 0.02

Then = Callable[[], None]


class NodeViews:
    """`position`: of the events that were heeded; -1: not known yet. `fenced`: contents of a page
    that is being applied; `leaving`: those that are being dropped."""

    def __init__(self, server: WorkerServer) -> None:
        self.server = server
        self.host = server.host
        self.process: Process = server.process
        self.position = -1
        self.sessions: list[Session] = []
        self.attached: list[Session] = []
        self.views: list[SimView] = []
        self.removing: dict[int, Tree] = {}
        self.turns = Turns()
        self.fenced: set[bytes] = set()
        self.leaving: set[bytes] = set()
        for tree in self.host.trees.values():
            server.cache.hold(tree.contents)
        for tree in [*self.host.trees.values()]:
            if tree.is_thawed:
                self._begin_removal(tree)
            else:
                self.views.append(SimView(self, tree))

    def start(self) -> None:
        self._ask_for_events()
        self._tick()

    def died(self) -> None:
        for session in self.sessions:
            session.server_died()

    def _tick(self) -> None:
        if self.position >= 0:
            for view in [*self.views]:
                view.tick()
        self.process.after(TICK_S, self._tick)

    # ---- events ----

    def _ask_for_events(self) -> None:
        self.server.call(master.URL, GetEvents(self.position), self._told_events)

    def _told_events(self, answer: object) -> None:
        if not isinstance(answer, Events):
            return self.process.after(POLL_S, self._ask_for_events)
        if self.position < 0:
            self.position = answer.position
            for view in [*self.views]:
                view.resume()
            self.process.after(POLL_S, self._ask_for_events)
        elif answer.changed is None:
            self._heed(None, lambda: self._pass_on(answer.position, ()))
        else:
            self._pass_on(self.position, answer.changed)

    def _pass_on(self, position: int, rest: Sequence[frozenset[bytes]]) -> None:
        """All up to there was heeded: the mounts are told of it."""
        self.position = position
        for session in self.attached:
            session.send_told(position)
        if not rest:
            return self.process.after(POLL_S, self._ask_for_events)
        self._heed(rest[0], lambda: self._pass_on(position + 1, rest[1:]))

    def _heed(self, changed: Collection[bytes] | None, then: Then) -> None:
        """`changed`: paths; None: everything."""
        touched = [view for view in self.views if view.touched_by(changed)]
        self.uncover(touched, "changed", then)

    def uncover(self, views: Iterable[SimView], reason: str, then: Then) -> None:
        """`then`: when none of them is shown any more."""
        left = {*views}

        def gone(view: SimView) -> None:
            left.discard(view)
            if not left:
                then()

        if not left:
            return then()
        for view in sorted(left, key=lambda one: one.tree.path):
            view.uncover(reason, lambda view=view: gone(view))  # type: ignore[misc]

    # ---- mounts ----

    def attach(self, session: Session, since_s: float | None = None) -> None:
        """Answers when no view may show what the mount would not show."""
        now_s = self.process.now_s
        since_s = now_s if since_s is None else since_s
        resuming = [view for view in self.views if not view.is_resumed]
        if self.position < 0 or (resuming and now_s - since_s < RESUME_S):
            return self.process.after(RETRY_S, lambda: self.attach(session, since_s))
        if resuming:
            for view in resuming:
                view.give_up_resuming()
            return self.process.after(RESUME_UNCOVER_S, lambda: self._attach(session))
        self._attach(session)

    def _attach(self, session: Session) -> None:
        if not session.is_open or session not in self.sessions:
            return
        self.attached.append(session)
        excused = {view.number for view in self.views if view.has_given_up}
        session.send_attached(self.position, excused)
        for view in self.views:
            view.add(session)

    def left(self, session: Session, *, is_followed: bool) -> None:
        self.sessions.remove(session)
        if session in self.attached:
            self.attached.remove(session)
        for view in self.views:
            view.remove(session, is_followed=is_followed)

    def reported(self, session: Session, number: int, *, covered: bool, reason: str) -> None:
        if session not in self.sessions:
            return
        for view in self.views:
            if view.number == number:
                return view.reported(session, covered=covered)
        if covered:
            session.send_uncover(number)

    # ---- commands ----

    def freeze(self, path: bytes, policy: str = "") -> None:
        """In place of those below it, and of those that a policy made."""
        near = [view for view in self.views if is_near(view.tree.path, path)]
        frozen = [view.tree.path for view in near if not view.tree.policy]
        if any(policy or is_at_or_below(path, one) for one in frozen):
            return

        def make() -> None:
            if any(is_near(view.tree.path, path) for view in self.views):
                return  # another command was faster
            tree = self.new_tree(path, policy)
            view = SimView(self, tree)
            self.views.append(view)
            for session in self.attached:
                view.add(session)

        self._thaw_each(near, make)

    def _thaw_each(self, views: Sequence[SimView], then: Then) -> None:
        if not views:
            return then()
        self.thaw(views[0], lambda: self._thaw_each(views[1:], then))

    def thaw(self, view: SimView, then: Then = lambda: None) -> None:
        """`then`: when no cover is left, and a restart would not lay one."""
        if view not in self.views or view.is_stopped:
            return then()
        view.is_stopped = True

        def record() -> None:
            view.tree.is_thawed = True
            self.process.after(self.disk_s, remove)

        def remove() -> None:
            view.thawed()
            self.views.remove(view)
            self._begin_removal(view.tree)
            then()

        view.uncover("thaw", lambda: self.process.after(self.disk_s, record))

    def give_way(self) -> None:
        """What a policy made leaves room for other data."""
        made = [view for view in self.views if view.tree.policy and not view.is_stopped]
        if made:
            self.thaw(min(made, key=lambda view: view.tree.path))

    def free(self, path: bytes) -> None:
        """Drops what is cached of the names below a path."""
        names = self.server.world.names
        assert names is not None
        files = [file for name, file in names.now.items() if is_at_or_below(name, path)]
        near = [view for view in self.views if is_near(view.tree.path, path)]
        keys = {file.key for file in files}
        self.uncover(near, "free", lambda: self.drop(keys))

    def drop(self, keys: Collection[bytes]) -> None:
        """Drops contents, from views first."""
        keys = {*keys}
        if keys & (self.fenced | self.leaving):
            return self.process.after(RETRY_S, lambda: self.drop(keys))
        self.leaving |= keys
        shown_by = [view for view in self.views if view.tree.contents & keys]

        def withdraw(over: Then) -> None:
            for tree in [*self.host.trees.values()]:
                paths = [name for name, one in tree.records.items() if one.content in keys]
                tree.unlink(paths)
                self.release(tree.forget(paths))
            self.process.after(self.disk_s, lambda: drop(over))

        def drop(over: Then) -> None:
            over()
            for key in sorted(keys):
                self.server.drop(key)
            self.leaving -= keys

        self.uncover(shown_by, "dropped", lambda: self.turns.take(withdraw))

    # ---- trees ----

    @property
    def disk_s(self) -> float:
        return self.host.disk.answer_s

    def new_number(self) -> int:
        """Of a tree or a cover: no two are the same."""
        return next(self.server.world.numbers)

    def new_tree(self, path: bytes, policy: str) -> Tree:
        number = self.new_number()
        tree = self.host.trees[number] = Tree(self.host, number, path, policy)
        return tree

    def is_being_removed(self, path: bytes) -> bool:
        return any(is_near(tree.path, path) for tree in self.removing.values())

    def replace(self, tree: Tree) -> Tree:
        """Another tree for the same path; both records in one step."""
        new = self.new_tree(tree.path, tree.policy)
        tree.is_thawed = True
        self._begin_removal(tree)
        return new

    def _begin_removal(self, tree: Tree) -> None:
        if tree.number not in self.removing:
            self.removing[tree.number] = tree
            self.turns.take(lambda over: self._remove_some(tree, over))

    def _remove_some(self, tree: Tree, over: Then) -> None:
        """A batch: names, then records, then holds."""
        names = sorted(tree.records)[:BATCH_NAMES]

        def unlink() -> None:
            tree.unlink(names)
            self.process.after(self.disk_s, forget)

        def forget() -> None:
            self.release(tree.forget(names))
            if not tree.records:
                del self.host.trees[tree.number], self.removing[tree.number]
            else:
                self.turns.take(lambda over: self._remove_some(tree, over))
            over()

        self.process.after(self.disk_s, unlink)

    def release(self, keys: Collection[bytes]) -> None:
        self.server.cache.release(keys, self.process.now_s)

    # ---- what must hold ----

    def check(self) -> None:
        """What is held is in a tree, or about to be."""
        recorded = {key for tree in self.host.trees.values() for key in tree.contents}
        held = self.server.cache.held()
        loose = held - recorded - self.fenced
        inos = [self.server.world.origin.by_key[key].ino for key in loose]
        assert not loose, f"{inos} are held at {self.host.id}, but in no view"
        assert recorded <= held | self.leaving, "a content of a view is not held"
