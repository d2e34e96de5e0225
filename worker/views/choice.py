"""Which directories the policy `view` has covered without a command, and which of them give way.
Pure.

A survey counts the known files of each directory, and how many of them each tier lacks. The highest
directories that one tier has completely are chosen, after they looked the same for a while; by
`auto` only such as are being used. A survey only knows names and records: the pass that builds the
view finds what it did not see.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from cachefs.core.policies import (
    AUTO,
    NATIVE,
    NEVER,
    VIEW_LEAST_FILES,
    VIEW_MOST_MEAN_BYTES,
    above,
)
from worker.views.pace import RebuildPace

MOST_DIRECTORIES: Final = 4096  # whose use one view of `auto` has the kernel watch
RECENT_S: Final = 60.0  # a directory is being used if something in it was used so long ago at most
LEAST_PAUSE_S: Final = 60.0  # after a view that could not be built, or was not used
MOST_PAUSE_S: Final = 3600.0
MOST_REST_S: Final = 600.0  # of the pauses after views that were not used
MOST_PACES: Final = 1024


# ---- what is complete ----------------------------------------------------------------------------


@dataclass(slots=True)
class FileCounts:
    """The files of a directory. `missing`: by tier. `directories`: itself, and those below that
    have files. `mark` changes with any of the files. `used_s`: the last known use of one (wall
    clock; 0: none)."""

    missing: list[int]
    files: int = 0
    directories: int = 0
    size_bytes: int = 0
    mark: int = 0
    used_s: int = 0

    def add(self, other: FileCounts) -> None:
        self.directories += other.directories
        self.used_s = max(self.used_s, other.used_s)
        self.files += other.files
        self.size_bytes += other.size_bytes
        self.mark ^= other.mark
        for tier, count in enumerate(other.missing):
            self.missing[tier] += count

    @property
    def tier(self) -> int | None:
        """The fastest tier that has all of them."""
        return next((tier for tier, count in enumerate(self.missing) if not count), None)


class Counts:
    """The counts of directories with all below them, in the order of a walk: all below a directory
    comes together. Of those that are complete in no tier, or have fewer files than `least_files`,
    nothing is kept, as there may be millions."""

    def __init__(self, tiers: int, least_files: int) -> None:
        self._tiers = tiers
        self._least_files = least_files
        self._open: list[tuple[bytes, FileCounts]] = []  # a directory and some above it
        self._found: dict[bytes, FileCounts] = {}

    def count(
        self,
        directory: bytes,
        ino: int,
        size_bytes: int,
        missing: Sequence[bool],
        used_s: int = 0,
    ) -> None:
        """Counts one file."""
        counted = self._at(directory)
        counted.files += 1
        counted.used_s = max(counted.used_s, used_s)
        counted.size_bytes += size_bytes
        counted.mark ^= hash((ino, size_bytes))
        for tier, is_missing in enumerate(missing):
            counted.missing[tier] += is_missing

    def count_unlisted(self, directory: bytes) -> None:
        """Counts a directory that was never listed: it lacks files in all tiers."""
        counted = self._at(directory)
        for tier in range(self._tiers):
            counted.missing[tier] += 1

    def _at(self, directory: bytes) -> FileCounts:
        """Returns the counts of a directory's own files, after it has ended others."""
        while self._open and not is_at_or_below(directory, self._open[-1][0]):
            self._end()
        if not self._open or self._open[-1][0] != directory:
            top = self._open[-1][0] if self._open else None
            below = [path for path in above(directory) if path != top and _is_under(path, top)]
            self._open += [
                (path, FileCounts([0] * self._tiers, directories=1)) for path in reversed(below)
            ]
        return self._open[-1][1]

    def _end(self) -> None:
        path, counted = self._open.pop()
        if self._open:
            self._open[-1][1].add(counted)
        if counted.tier is not None and counted.files >= self._least_files:
            self._found[path] = counted

    def totals(self) -> dict[bytes, FileCounts]:
        """Returns what was kept. The counts are over."""
        while self._open:
            self._end()
        return self._found


def _is_under(path: bytes, top: bytes | None) -> bool:
    return top is None or is_below(path, top)


# ---- what is covered -----------------------------------------------------------------------------


class ViewPolicies(NamedTuple):
    """The policy `view` of the paths that set it."""

    said: Mapping[bytes, str]

    @property
    def wanted(self) -> list[bytes]:
        """The highest paths at and below which directories are covered."""
        some = {path for path, view in self.said.items() if view != NEVER}
        return [path for path in sorted(some) if not some & {*above(path)} - {path}]

    @property
    def least_files(self) -> int:
        """The least number of files of a directory that is covered."""
        return 1 if NATIVE in self.said.values() else VIEW_LEAST_FILES

    def at(self, path: bytes) -> str:
        """Returns the policy in force at a path."""
        return next((self.said[one] for one in above(path) if one in self.said), NEVER)

    def is_whole(self, path: bytes) -> bool:
        """Returns whether one view may cover all below a path: nothing below has the policy
        `never`, nor `native` below `auto`, whose views end when they are not used."""
        apart = (NEVER, NATIVE) if self.at(path) == AUTO else (NEVER,)
        return not any(view in apart and is_below(one, path) for one, view in self.said.items())


NO_POLICIES: Final = ViewPolicies({})


class ViewCandidate(NamedTuple):
    """A directory that may be covered. `policy`: auto or native. `tier`: of those surveyed.
    `used_s`: the last known use of a file by the mount (wall clock). `is_shown`: views lie below
    it, whose files are used unseen; they end if nothing uses them."""

    path: bytes
    policy: str
    tier: int
    mark: tuple[int, int, int]
    used_s: int = 0
    is_shown: bool = False

    def is_wanted(self, now_s: float) -> bool:
        """Returns whether it is to be covered as soon as it was the same for long enough. What
        `auto` covers is compared with its origin while it is used, so it begins with a use."""
        return self.policy == NATIVE or self.is_shown or now_s - self.used_s <= RECENT_S


def candidates(
    totals: Mapping[bytes, FileCounts],
    policies: ViewPolicies,
    *,
    shown: Sequence[tuple[bytes, str]],
    is_paused: Callable[[bytes], bool],
) -> list[ViewCandidate]:
    """Returns the highest directories that could be covered now. `shown`: the views by path, with
    the policy that made them; "" for a frozen one, which nothing else meets."""
    found: list[ViewCandidate] = []
    for path in sorted(totals):
        counted, policy = totals[path], policies.at(path)
        tier = counted.tier
        if tier is None or not _is_worth(policy, counted) or not policies.is_whole(path):
            continue
        if any(is_at_or_below(path, one.path) for one in found) or is_paused(path):
            continue
        if not any(_is_in_the_way(path, *one) for one in shown):
            mark = counted.files, counted.size_bytes, counted.mark
            is_shown = any(is_below(one, path) for one, _ in shown)
            found.append(ViewCandidate(path, policy, tier, mark, counted.used_s, is_shown))
    return found


def too_wide(
    totals: Mapping[bytes, FileCounts], policies: ViewPolicies, shown: Sequence[bytes]
) -> list[bytes]:
    """Returns the highest complete directories that `auto` does not cover because they have too
    many directories. `shown`: the paths of views, at and below which nothing is reported."""
    found: list[bytes] = []
    for path in sorted(totals):
        counted = totals[path]
        is_wide = _is_small(counted) and not _is_narrow(counted)
        if not is_wide or counted.tier is None or policies.at(path) != AUTO:
            continue
        if policies.is_whole(path) and not any(
            is_at_or_below(path, one) for one in (*found, *shown)
        ):
            found.append(path)
    return found


def why_too_wide(counted: FileCounts) -> str:
    return (
        f"{counted.directories:,} directories, of which view=auto takes {MOST_DIRECTORIES:,}: "
        "freeze it"
    )


def _is_worth(policy: str, counted: FileCounts) -> bool:
    if policy == NATIVE:
        return counted.files > 0
    return policy == AUTO and _is_small(counted) and _is_narrow(counted)


def _is_small(counted: FileCounts) -> bool:
    enough = counted.files >= VIEW_LEAST_FILES
    return enough and counted.size_bytes <= VIEW_MOST_MEAN_BYTES * counted.files


def _is_narrow(counted: FileCounts) -> bool:
    return counted.directories <= MOST_DIRECTORIES


def _is_in_the_way(path: bytes, shown: bytes, policy: str) -> bool:
    return is_at_or_below(path, shown) or (not policy and is_below(shown, path))


class QuietTimes:
    """Since when each candidate looks the same."""

    def __init__(self) -> None:
        self._since: dict[bytes, tuple[tuple[int, int, int], float]] = {}

    def note(self, found: Sequence[ViewCandidate], now_s: float) -> None:
        """Takes the candidates of a survey, and forgets all others."""
        before, self._since = self._since, {}
        for one in found:
            mark, since_s = before.get(one.path, (one.mark, now_s))
            self._since[one.path] = one.mark, since_s if mark == one.mark else now_s

    def for_s(self, path: bytes, now_s: float) -> float:
        return now_s - self._since[path][1]

    def forget(self, path: bytes) -> None:
        self._since.pop(path, None)


class Pauses:
    """The paths at, above and below which no view is made for a while, `most_s` at most."""

    def __init__(self, most_s: float = MOST_PAUSE_S) -> None:
        self._most_s = most_s
        self._until_s: dict[bytes, float] = {}
        self._paces: dict[bytes, RebuildPace] = {}

    def put(self, path: bytes, until_s: float) -> None:
        self._until_s[path] = until_s

    def grow(self, path: bytes, now_s: float) -> None:
        """Begins a pause that is longer each time."""
        pace = self._paces.pop(path, None) or RebuildPace(LEAST_PAUSE_S, self._most_s)
        self._paces[path] = pace
        if len(self._paces) > MOST_PACES:
            del self._paces[next(iter(self._paces))]
        self.put(path, pace.next_s(now_s))

    def expire(self, now_s: float) -> bool:
        """Ends pauses. Returns whether one has ended."""
        before = self._until_s
        self._until_s = {path: end_s for path, end_s in before.items() if end_s > now_s}
        return len(self._until_s) < len(before)

    def __contains__(self, path: bytes) -> bool:
        return any(is_at_or_below(path, one) or is_below(one, path) for one in self._until_s)


# ---- what gives way ------------------------------------------------------------------------------


class YieldingView(NamedTuple):
    """A view that may give way. `used_s`: its last known use (wall clock)."""

    number: int
    used_s: float


def gives_way(
    views: Sequence[YieldingView],
    *,
    oldest_use_s: float,
    idle_after_s: float,
    replaces: bool,
    now_s: float,
) -> int | None:
    """Returns the number of the view that gives way to data that found no room. `replaces`: such
    data takes the place of what was used longest ago (`oldest_use_s`: of all but views); a view
    gives way if its last use is older. Else a view gives way once it was idle for long."""
    oldest = min(views, key=lambda one: one.used_s, default=None)
    if oldest is None:
        return None
    goes = replaces and oldest.used_s <= oldest_use_s
    return oldest.number if goes or oldest.used_s + idle_after_s <= now_s else None


# ---- paths ---------------------------------------------------------------------------------------


def is_below(path: bytes, top: bytes) -> bool:
    return path != top and (not top or path.startswith(top + b"/"))


def is_at_or_below(path: bytes, top: bytes) -> bool:
    return path == top or is_below(path, top)


def is_near(path: bytes, other: bytes) -> bool:
    """Returns whether one is the other, or below it."""
    return is_at_or_below(path, other) or is_at_or_below(other, path)
