"""Nodeids: one mode and one backing file while open, and who is sent back at most once."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from cachefs.core.model import MAX_INCARNATION, nodeid, split_nodeid
from cachefs.fuse.kernel import nodes as module
from cachefs.fuse.kernel.nodes import Nodes
from cachefs.fuse.kernel.table import Mode
from tests.services.examples import examples

INO = 77


def test_a_name_leads_to_the_ino_until_it_moves_on() -> None:
    nodes = Nodes()
    assert nodes.current(INO) == INO
    nodes.open(INO, 1, Mode.CACHED, 0)
    assert nodes.move_on(INO)
    assert nodes.current(INO) == nodeid(INO, 1)
    nodes.open(nodeid(INO, 1), 2, Mode.PASSTHROUGH, 9)
    nodes.check_invariants()


def test_who_comes_without_a_name_is_sent_back_once() -> None:
    nodes = Nodes()
    nodes.open(INO, 1, Mode.CACHED, 0)
    assert nodes.move_on(INO)
    assert not nodes.move_on(INO)
    assert nodes.current(INO) == nodeid(INO, 1)


def test_a_nodeid_that_was_closed_may_take_another_mode() -> None:
    nodes = Nodes()
    nodes.open(INO, 1, Mode.CACHED, 0)
    assert nodes.release(INO, 1) is not None
    nodes.open(INO, 2, Mode.PASSTHROUGH, 9)
    with pytest.raises(AssertionError):
        nodes.open(INO, 3, Mode.CACHED, 0)
    with pytest.raises(AssertionError):
        nodes.open(INO, 3, Mode.PASSTHROUGH, 10)
    nodes.check_invariants()


def test_an_ino_that_is_given_again_is_another_nodeid_from_then_on() -> None:
    nodes = Nodes()
    nodes.open(INO, 1, Mode.PASSTHROUGH, 9)
    assert not nodes.is_former(INO)
    nodes.reassign_ino(INO)
    assert nodes.current(INO) == nodeid(INO, 1)
    assert nodes.is_former(INO)
    assert not nodes.is_former(nodeid(INO, 1))
    assert nodes.get(INO) is not None, "what is open stays open"
    nodes.open(nodeid(INO, 1), 2, Mode.CACHED, 0)
    assert nodes.move_on(nodeid(INO, 1))
    assert nodes.current(INO) == nodeid(INO, 2)
    assert not nodes.is_former(nodeid(INO, 1)), "of the same file"
    nodes.reassign_ino(INO)
    assert nodes.is_former(nodeid(INO, 2))
    nodes.check_invariants()


def test_the_last_release_gives_the_node_and_only_once() -> None:
    nodes = Nodes()
    nodes.open(INO, 1, Mode.PASSTHROUGH, 9)
    nodes.open(INO, 2, Mode.PASSTHROUGH, 9)
    assert nodes.release(INO, 1) is None
    assert nodes.release(INO, 1) is None
    assert nodes.is_open(INO)
    last = nodes.release(INO, 2)
    assert last is not None
    assert last.backing_id == 9
    assert nodes.release(INO, 2) is None
    assert not nodes.is_open(INO)
    assert len(nodes) == 0


def test_incarnations_that_are_open_are_passed_over() -> None:
    nodes = Nodes()
    for number in (0, 1, 2):
        nodes.open(nodeid(INO, number), number + 1, Mode.PASSTHROUGH, 9)
    nodes.open(nodeid(INO, MAX_INCARNATION), 9, Mode.CACHED, 0)
    nodes.adopt(nodeid(INO, MAX_INCARNATION), 10, Mode.CACHED, 0)
    assert nodes.move_on(nodeid(INO, MAX_INCARNATION))
    assert nodes.current(INO) == nodeid(INO, 3), "after the last number comes the first"


def test_inos_that_were_forgotten_start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_MOVED", 4)
    nodes = Nodes()
    nodes.open(INO, 1, Mode.CACHED, 0)
    assert nodes.move_on(INO)
    for ino in range(100, 110):
        nodes.open(ino, ino, Mode.CACHED, 0)
        nodes.move_on(ino)
    assert nodes.current(INO) == INO
    assert not nodes.move_on(INO), "it is open, and was sent back from"
    nodes.check_invariants()


class Histories(RuleBasedStateMachine):
    """Openers by name and without, closers, and successors, against what the kernel allows.

    `opened`: nodeid -> (mode, backing id, handles), as the kernel has it.
    """

    inos = st.integers(2, 4)

    @initialize()
    def start(self) -> None:
        self.nodes = Nodes()
        self.opened: dict[int, tuple[Mode, int, set[int]]] = {}
        self.last = 0
        self.complete: set[int] = set()
        self.dentries: dict[int, int] = {}

    def number(self) -> int:
        self.last += 1
        return self.last

    def open_at(self, where: int, cause: str) -> bool:
        """As `Opens` does; False when the opener is sent back."""
        known = self.opened.get(where)
        complete = where & (1 << 48) - 1 in self.complete
        if known is not None and known[0] is Mode.PASSTHROUGH:
            mode, backing_id = known[:2]
        elif known is not None:
            if complete and self.nodes.move_on(where):
                return False
            mode, backing_id = Mode.CACHED, 0
        elif complete:
            mode, backing_id = Mode.PASSTHROUGH, self.number()
        else:
            mode, backing_id = Mode.CACHED, 0
        fh = self.number()
        self.nodes.open(where, fh, mode, backing_id)
        entry = self.opened.setdefault(where, (mode, backing_id, set()))
        assert entry[:2] == (mode, backing_id), f"the kernel answers EIO: {cause}"
        entry[2].add(fh)
        return True

    @rule(ino=inos)
    def look_up(self, ino: int) -> None:
        self.dentries[ino] = self.nodes.current(ino)

    @rule(ino=inos, gives_up=st.booleans())
    def open_by_name(self, ino: int, gives_up: bool) -> None:
        """Where the dentry leads, which may be old; after ESTALE the kernel looks it up once. An
        opener that is killed in between leaves the dentry as it is."""
        if self.open_at(self.dentries.get(ino, self.nodes.current(ino)), "by name") or gives_up:
            return
        self.look_up(ino)
        if self.open_at(self.dentries[ino], "by name"):
            return
        raise AssertionError("ESTALE twice: the caller sees it")

    @precondition(lambda self: self.opened)
    @rule(data=st.data())
    def open_without_a_name(self, data: st.DataObject) -> None:
        where = data.draw(st.sampled_from(sorted(self.opened)))
        for _ in range(2):
            if self.open_at(where, "through /proc/PID/fd"):
                return
        raise AssertionError("ESTALE twice: the caller sees it")

    @rule(ino=inos)
    def fill(self, ino: int) -> None:
        self.complete.add(ino)

    @rule(ino=inos)
    def evict(self, ino: int) -> None:
        self.complete.discard(ino)

    @precondition(lambda self: self.opened)
    @rule(data=st.data(), twice=st.booleans())
    def release(self, data: st.DataObject, twice: bool) -> None:
        where = data.draw(st.sampled_from(sorted(self.opened)))
        _, backing_id, handles = self.opened[where]
        fh = data.draw(st.sampled_from(sorted(handles)))
        handles.remove(fh)
        if not handles:
            del self.opened[where]
        node = self.nodes.release(where, fh)
        assert (node is not None) == (not handles)
        assert node is None or node.backing_id == backing_id
        if twice:
            assert self.nodes.release(where, fh) is None

    @rule()
    def take_over(self) -> None:
        self.nodes = Nodes()
        for where, (mode, backing_id, handles) in self.opened.items():
            for fh in handles:
                self.nodes.adopt(where, fh, mode, backing_id)

    @invariant()
    def both_agree(self) -> None:
        self.nodes.check_invariants()
        assert len(self.nodes) == len(self.opened)
        for where, (mode, backing_id, handles) in self.opened.items():
            node = self.nodes.get(where)
            assert node is not None
            assert (node.mode, node.backing_id, node.handles) == (mode, backing_id, handles)
        for ino in range(2, 5):
            assert split_nodeid(self.nodes.current(ino))[0] == ino
            is_open = any(where & (1 << 48) - 1 == ino for where in self.opened)
            assert self.nodes.is_open(ino) == is_open


Histories.TestCase.settings = settings(
    max_examples=examples(150), stateful_step_count=40, deadline=None
)
TestHistories = Histories.TestCase
