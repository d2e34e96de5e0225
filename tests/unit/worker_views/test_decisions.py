"""The decisions about views: states, covers of many mounts, pauses, differences of pages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefs.core.model import Inode, Kind
from worker.store.view_page import change
from worker.store.view_records import FILE, NameRecord, name_record
from worker.views.cover_table import CoverTable
from worker.views.pace import FIRST_S, MOST_S, RebuildPace
from worker.views.view_state import (
    TRANSITIONS,
    InvalidViewEvent,
    ViewEvent,
    ViewState,
    is_shown,
    moved,
)


@pytest.mark.parametrize("event", ViewEvent)
@pytest.mark.parametrize("state", ViewState)
def test_only_the_table_moves_a_view(state: ViewState, event: ViewEvent) -> None:
    if (state, event) in TRANSITIONS:
        return None if moved(state, event) in ViewState else pytest.fail("no state")
    with pytest.raises(InvalidViewEvent):
        moved(state, event)


def test_a_tree_is_changed_only_after_its_covers_are_gone() -> None:
    """Every way from a state in which covers may exist to one that builds leads over UNCOVERED."""
    for (state, event), after in TRANSITIONS.items():
        if is_shown(state) and not is_shown(after):
            assert event is ViewEvent.UNCOVERED
        if is_shown(after) and not is_shown(state):
            assert event is ViewEvent.BUILT


class _Mount:
    """A client that obeys in order, fails at times, and loses covers. `at`: its commands."""

    def __init__(self) -> None:
        self.covered = False
        self.commands: list[str] = []
        self.reports: list[bool] = []


@given(st.data())
def test_a_clear_table_means_that_no_mount_is_covered(data: st.DataObject) -> None:
    """A model: mounts carry commands out, and their reports arrive, in any interleaving."""
    table = CoverTable[int]()
    mounts = {number: _Mount() for number in range(3)}
    ended: set[int] = set()
    steps = ["lay", "leave", "obey", "fail", "lost", "hear", "end", "follow"]
    for step in data.draw(st.lists(st.sampled_from(steps), max_size=60)):
        number = data.draw(st.sampled_from(sorted(mounts)))
        mount = mounts[number]
        if step == "lay" and number not in ended:
            if table.lay(number):
                mount.commands.append("cover")
        elif step == "leave" and not table.is_leaving:
            for host in table.leave():
                mounts[host].commands.append("uncover")
        elif step in ("obey", "fail") and mount.commands and number not in ended:
            command = mount.commands.pop(0)
            mount.covered = command == "cover" and (step == "obey" or mount.covered)
            mount.reports.append(mount.covered)
        elif step == "lost" and mount.covered and number not in ended:
            mount.covered = False
            mount.reports.append(False)
        elif step == "hear" and mount.reports:
            if table.report(number, covered=mount.reports.pop(0)):
                mount.commands.append("uncover")
        elif step == "end" and number not in ended:
            ended.add(number)
            mount.commands.clear()  # the client dies; its mount keeps the cover
            mount.reports.clear()
            table.end(number, str(number), is_followed=True)
        elif step == "follow" and number in ended:
            ended.discard(number)
            if table.follow(number, str(number)):
                mount.commands.append("uncover" if table.is_leaving else "cover")
            elif mount.covered:
                mount.reports.append(True)
        table.check_invariants()
        pending = any(True in mount.reports for mount in mounts.values())
        if table.is_clear and not pending:
            assert not any(mount.covered for mount in mounts.values())


def test_an_uncertain_table_is_not_clear() -> None:
    table = CoverTable[int](uncertain=True)
    assert not table.is_clear
    assert table.leave() == []
    table.uncertain = False
    assert table.is_clear


@given(st.lists(st.floats(0, 100), max_size=40))
def test_pauses_grow_while_changes_go_on(gaps: list[float]) -> None:
    pace, now, last_s = RebuildPace(), 0.0, 0.0
    for gap_s in gaps:
        due_s = pace.next_s(now)
        pause_s = due_s - now
        assert pause_s + 1e-6 >= FIRST_S
        assert pause_s <= min(MOST_S, max(FIRST_S, 2 * last_s)) + 1e-6
        now, last_s = due_s + gap_s, pause_s


def test_a_quiet_time_makes_the_next_pause_short() -> None:
    pace, now = RebuildPace(), 0.0
    for _ in range(20):
        now = pace.next_s(now)
    assert pace.next_s(now) - now == MOST_S
    assert pace.next_s(now + 12 * MOST_S) == now + 12 * MOST_S + FIRST_S


_records = st.builds(
    NameRecord, st.integers(1, 3), st.sampled_from([1, 2, 3]), st.sampled_from([b"", b"k"]),
    st.sampled_from([0o644, 0o600]), st.just(0), st.just(0), st.integers(0, 1),
)  # fmt: skip
_pages = st.dictionaries(st.sampled_from([b"a", b"b", b"c/"]), _records)


@given(_pages, _pages)
def test_a_change_leads_from_what_is_known_to_what_is_wanted(
    known: dict[bytes, NameRecord], wanted: dict[bytes, NameRecord]
) -> None:
    gone, put = change(known, wanted)
    left = {key: record for key, record in known.items() if key not in gone}
    assert {**left, **put} == wanted
    assert change(wanted, wanted) == ({}, {})


def test_a_record_has_the_attributes_that_the_mount_shows() -> None:
    defaults = 5, 6, 0o640, 0o750
    plain = name_record(Inode(9, Kind.FILE, 3, 4), b"k", defaults)
    assert plain == NameRecord(9, FILE, b"k", 0o640, 5, 6, 4, 3)
    own = Inode(9, Kind.FILE, 3, 4, mode=0o4711, uid=1, gid=2)
    assert (name_record(own, b"k", defaults).mode, name_record(own, b"", defaults).uid) == (
        0o4711,
        1,
    )
    assert name_record(Inode(9, Kind.DIRECTORY), b"", defaults).mode == 0o750


def test_a_report_of_the_next_client_settles_a_mount() -> None:
    table = CoverTable[int]()
    table.lay(1)
    table.report(1, covered=True)
    table.report(2, covered=True)  # of the successor, before its predecessor ends
    table.end(1, "/m", is_followed=False)
    assert (table.hosts, table.count) == ([2], 1)
    table.end(2, "/m", is_followed=True)
    assert table.count == 1
    table.heard("/m")
    assert table.is_clear
