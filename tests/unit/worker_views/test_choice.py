"""What the policy `view` has covered, and what gives way: decisions alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefs.core.policies import (
    AUTO,
    NATIVE,
    NEVER,
    VIEW_LEAST_FILES,
    VIEW_MOST_MEAN_BYTES,
    above,
)
from worker.views.choice import (
    LEAST_PAUSE_S,
    MOST_DIRECTORIES,
    MOST_PAUSE_S,
    MOST_REST_S,
    RECENT_S,
    Counts,
    Pauses,
    QuietTimes,
    ViewCandidate,
    ViewPolicies,
    YieldingView,
    candidates,
    gives_way,
    is_at_or_below,
    is_below,
    too_wide,
)


def counted(
    files: dict[bytes, int], *, missing: tuple[bytes, ...] = (), size_bytes: int = 100
) -> Counts:
    """`files`: the number by directory. `missing`: the directories of which tier 0 lacks a file."""
    counts = Counts(1, 1)
    for place, (directory, count) in enumerate(sorted(files.items())):
        for number in range(count):
            lacks = directory in missing and number == 0
            counts.count(directory, 1_000_000 * place + number, size_bytes, [lacks])
    return counts


def chosen(
    counts: Counts,
    said: dict[bytes, str],
    shown: tuple[tuple[bytes, str], ...] = (),
    paused: Pauses | None = None,
) -> list[bytes]:
    is_paused = (paused or Pauses()).__contains__
    found = candidates(counts.totals(), ViewPolicies(said), shown=shown, is_paused=is_paused)
    return [one.path for one in found]


ENOUGH = {b"a/x": VIEW_LEAST_FILES, b"a/y": VIEW_LEAST_FILES, b"b": VIEW_LEAST_FILES}


def test_the_highest_complete_directory_is_chosen() -> None:
    assert chosen(counted(ENOUGH), {b"": AUTO}) == [b""]
    assert chosen(counted(ENOUGH, missing=(b"b",)), {b"": AUTO}) == [b"a"]
    assert chosen(counted(ENOUGH, missing=(b"a/x",)), {b"": AUTO}) == [b"a/y", b"b"]


def test_only_where_a_policy_says_so() -> None:
    assert chosen(counted(ENOUGH), {b"": NEVER}) == []
    assert chosen(counted(ENOUGH), {b"": NEVER, b"a": AUTO}) == [b"a"]
    assert chosen(counted(ENOUGH), {b"": AUTO, b"a/x": NEVER}) == [b"a/y", b"b"]


def test_auto_takes_many_small_files_and_native_any() -> None:
    few = counted({b"a": VIEW_LEAST_FILES - 1})
    assert (chosen(few, {b"": AUTO}), chosen(few, {b"": NATIVE})) == ([], [b""])
    large = counted({b"a": VIEW_LEAST_FILES}, size_bytes=VIEW_MOST_MEAN_BYTES + 1)
    assert (chosen(large, {b"": AUTO}), chosen(large, {b"": NATIVE})) == ([], [b""])


def test_what_is_native_is_covered_whether_auto_above_it_is_used_or_not() -> None:
    """A view of `auto` ends when it is not used, and gives way to other data."""
    said = {b"": AUTO, b"a/x": NATIVE}
    assert chosen(counted(ENOUGH), said) == [b"a/x", b"a/y", b"b"]
    assert chosen(counted(ENOUGH), said, ((b"a/x", NATIVE),)) == [b"a/y", b"b"]
    assert not ViewPolicies(said).is_whole(b""), "a view of all that was made before ends"
    assert chosen(counted(ENOUGH), {b"": NATIVE, b"a/x": AUTO}) == [b""]
    policies = ViewPolicies({b"": AUTO, b"a": NATIVE})
    assert too_wide(wide(MOST_DIRECTORIES).totals(), policies, ()) == []


def test_one_tier_must_have_everything() -> None:
    counts = Counts(2, VIEW_LEAST_FILES)
    for number in range(2 * VIEW_LEAST_FILES):
        lacks = number < VIEW_LEAST_FILES
        counts.count(b"a" if lacks else b"b", number, 10, [lacks, False])
    (one,) = candidates(
        counts.totals(), ViewPolicies({b"": AUTO}), shown=(), is_paused=Pauses().__contains__
    )
    assert (one.path, one.tier) == (b"", 1)


def test_a_directory_that_was_never_listed_is_not_complete() -> None:
    counts = counted({b"a/x": VIEW_LEAST_FILES, b"a/y": VIEW_LEAST_FILES})
    counts.count_unlisted(b"a/z")
    assert chosen(counts, {b"": AUTO}) == [b"a/x", b"a/y"]


def test_directories_that_cannot_be_covered_are_not_kept() -> None:
    counts = Counts(1, VIEW_LEAST_FILES)
    for number in range(2 * VIEW_LEAST_FILES):
        counts.count(b"a/%d" % number, number, 10, [False])
        counts.count(b"a", -1 - number, 10, [False])  # its pages come between
    counts.count(b"b", 9_000_000, 10, [True])
    totals = counts.totals()
    assert [*totals] == [b"a"]
    assert (totals[b"a"].files, totals[b"a"].directories) == (
        4 * VIEW_LEAST_FILES,
        2 * VIEW_LEAST_FILES + 1,
    )


def test_nothing_meets_what_an_operator_froze() -> None:
    assert chosen(counted(ENOUGH), {b"": AUTO}, ((b"a/x", ""),)) == [b"a/y", b"b"]
    assert chosen(counted(ENOUGH), {b"": AUTO}, ((b"", ""),)) == []


def test_a_higher_directory_takes_the_place_of_those_below() -> None:
    assert chosen(counted(ENOUGH), {b"": AUTO}, ((b"a/x", AUTO), (b"b", AUTO))) == [b""]
    assert chosen(counted(ENOUGH), {b"": AUTO}, ((b"", AUTO),)) == []


def test_a_pause_holds_for_all_that_it_meets_and_grows() -> None:
    pauses = Pauses()
    pauses.grow(b"a/x", 0.0)
    assert [b"a" in pauses, b"a/x" in pauses, b"a/x/y" in pauses, b"b" in pauses] == [
        True, True, True, False,
    ]  # fmt: skip
    assert chosen(counted(ENOUGH), {b"": AUTO}, paused=pauses) == [b"a/y", b"b"]
    ends = []
    now = 0.0
    for _ in range(20):
        pauses.grow(b"a/x", now)
        start = now
        while b"a/x" in pauses:
            now += 10.0
            pauses.expire(now)
        ends.append(now - start)
    assert ends == sorted(ends)
    assert LEAST_PAUSE_S <= ends[0] < ends[-1] <= MOST_PAUSE_S


def test_a_directory_must_look_the_same_for_a_while() -> None:
    quiet = QuietTimes()
    first = ViewCandidate(b"a", AUTO, 0, (1000, 5, 7))
    quiet.note([first], 10.0)
    quiet.note([first], 40.0)
    assert quiet.for_s(b"a", 40.0) == 30.0
    quiet.note([first._replace(mark=(1000, 5, 8))], 50.0)
    assert quiet.for_s(b"a", 55.0) == 5.0
    quiet.note([], 60.0)
    quiet.note([first], 70.0)
    assert quiet.for_s(b"a", 75.0) == 5.0


def test_auto_begins_with_a_use_and_native_without() -> None:
    counts = counted({b"a": VIEW_LEAST_FILES})
    counts.count(b"a", 9_000_000, 100, [False], used_s=5000)
    for policy in (AUTO, NATIVE):
        (one,) = candidates(
            counts.totals(), ViewPolicies({b"": policy}), shown=(), is_paused=Pauses().__contains__
        )
        assert (one.path, one.used_s) == (b"", 5000)
        assert one.is_wanted(5000 + RECENT_S)
        assert one.is_wanted(5001 + RECENT_S) == (policy == NATIVE)
    (one,) = candidates(
        counts.totals(),
        ViewPolicies({b"": AUTO}),
        shown=[(b"a", AUTO)],
        is_paused=Pauses().__contains__,
    )
    assert one.is_wanted(9e9), "what lies below is in use"


def wide(directories: int) -> Counts:
    """Two directories, one of them with many below it, of a file each, and enough files itself."""
    files = {b"a/%d" % number: 1 for number in range(directories - 1)}
    return counted({**files, b"a": VIEW_LEAST_FILES, b"b": VIEW_LEAST_FILES})


def test_auto_covers_no_more_directories_than_the_kernel_watches_for_it() -> None:
    for extra, covered, refused in ((0, [b"a", b"b"], [b""]), (1, [b"b"], [b""])):
        counts = wide(MOST_DIRECTORIES + extra)
        said = {b"": AUTO}
        assert chosen(counts, said) == covered
        assert too_wide(counts.totals(), ViewPolicies(said), ()) == refused
        assert chosen(counts, {b"": NATIVE}) == [b""]
        assert too_wide(counts.totals(), ViewPolicies({b"": NATIVE}), ()) == []
        assert too_wide(counts.totals(), ViewPolicies(said), (b"",)) == []
    assert too_wide(counts.totals(), ViewPolicies({b"": NEVER, b"a": AUTO}), ()) == [b"a"]


def test_views_that_are_not_used_rest_for_a_shorter_time() -> None:
    rests = Pauses(MOST_REST_S)
    for turn in range(10):
        rests.grow(b"a", 300.0 * turn)
    assert not rests.expire(2700.0 + MOST_REST_S - 1)
    assert rests.expire(2700.0 + MOST_REST_S + 1)
    assert b"a" not in rests


VIEWS = [YieldingView(0, 500.0), YieldingView(1, 100.0)]


@pytest.mark.parametrize(
    ("replaces", "oldest_use_s", "now_s", "gone"),
    [
        (False, 0.0, 3699.0, None),  # it was not idle for long enough
        (False, 0.0, 3700.0, 1),
        (True, 99.0, 600.0, None),  # others were unused for longer
        (True, 100.0, 600.0, 1),
    ],
)
def test_a_view_gives_way_as_data_with_its_last_use_would(
    replaces: bool, oldest_use_s: float, now_s: float, gone: int | None
) -> None:
    found = gives_way(
        VIEWS, oldest_use_s=oldest_use_s, idle_after_s=3600.0, replaces=replaces, now_s=now_s
    )
    assert found == gone
    assert gives_way([], oldest_use_s=0, idle_after_s=0, replaces=True, now_s=9e9) is None


PATHS = st.sampled_from([b"", b"a", b"a/x", b"a/y", b"b", b"b/z", b"b/z/w"])


@given(
    files=st.dictionaries(PATHS, st.integers(1, 3), max_size=7),
    missing=st.frozensets(PATHS, max_size=3),
    said=st.dictionaries(PATHS, st.sampled_from([NATIVE, NEVER]), max_size=4),
    shown=st.dictionaries(PATHS, st.sampled_from(["", NATIVE]), max_size=3),
)
def test_what_is_chosen_is_complete_wanted_and_meets_nothing(
    files: dict[bytes, int],
    missing: frozenset[bytes],
    said: dict[bytes, str],
    shown: dict[bytes, str],
) -> None:
    lacking = {path for path in missing if path in files}
    found = chosen(
        counted(files, missing=tuple(lacking)), {b"": NEVER} | said, tuple(shown.items())
    )
    for path in found:
        below = [one for one in files if is_at_or_below(one, path)]
        assert below
        assert not lacking & set(below)
        policy = next((said[one] for one in above(path) if one in said), NEVER)
        assert policy == NATIVE
        assert not any(said[one] == NEVER for one in said if is_below(one, path))
        assert not any(is_at_or_below(path, one) for one in found if one != path)
        assert not any(is_at_or_below(path, one) for one in shown)
        assert not any(is_below(one, path) for one, by in shown.items() if not by)
