"""The decisions which small files to prefetch. Pure.

A namespace numbers files in the order in which their source lists them. A program that reads a
directory in the order of names (an unshuffled first epoch, `cp -r`, a scan) opens roughly ascending
inode numbers: several at once, with gaps. Such opens form a *run*. Once a run is dense enough, the
next numbers of its directory are prefetched, up to twice the number of recent opens, which bounds
useless prefetches. Opens in random order form no dense run and prefetch nothing.

Only an open that missed starts a run, or makes a run cross into another directory for the first
time. A run that has crossed once continues into the next directory before a file there is opened.
Opens of cached files advance a run. If `MOST_HERE` files in a row are already cached, the run ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

LEAST_OPENS: Final = 8  # of a run, before its first prefetch
REACH: Final = 64  # numbers between a run's last open and its next one
MOST_FILES: Final = 256  # prefetched beyond a run's last open, by default
MOST_SPAN: Final = 512  # numbers of a run that are considered
MOST_RUNS: Final = 64
MOST_HERE: Final = 32  # files in a row that were already cached
MOST_GAPS: Final = 64  # numbers in a row that are not small files
LIST_AFTER: Final = 128  # opens in a directory before the next directory is listed


@dataclass(eq=False, slots=True)
class OpenRun:
    """A series of opens with ascending inode numbers. `count` of the numbers from `first` to `at`
    were opened; those below `next` need no prefetch any more. `unread`: the sizes of prefetched
    files that were not opened yet, by number. `directory`: of the last open. `bringing`: the
    directory being prefetched, which is the next directory from the number `border` on."""

    first: int
    at: int
    directory: bytes
    count: int = 1
    next: int = 0
    here: int = 0
    gaps: int = 0
    at_end: bool = False  # the directory ends before `next`
    ended: int = 0  # the last such `next`
    is_listed: bool = False  # the listing of the next directory was requested
    crossed: bool = False  # opens continued in another directory
    bringing: bytes = b""
    border: int = 0
    unread: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bringing = self.directory

    @property
    def is_dense(self) -> bool:
        return self.count >= LEAST_OPENS and 2 * self.count > self.at - self.first

    def opened(self, ino: int) -> None:
        self.at = max(self.at, ino)
        span = self.at - self.first + 1
        self.count = min(self.count + 1, span)
        if span > MOST_SPAN:
            self.first += span // 2
            self.count -= self.count // 2

    def cross(self, directory: bytes) -> None:
        """Continues the run in another directory."""
        self.directory = self.bringing = directory
        self.border, self.at_end, self.is_listed, self.crossed = 0, False, False, True

    def next_ino(self, most_files: int) -> int:
        """Returns the number to prefetch now; 0: none."""
        self.next = max(self.next, self.at + 1)
        if self.at_end or self.next > self.at + min(most_files, 2 * self.count):
            return 0
        return self.next


class OpenRuns:
    """The runs of one namespace."""

    def __init__(self, most_files: int = MOST_FILES) -> None:
        self._most_files = most_files
        self._runs: dict[int, OpenRun] = {}  # by `at // REACH`; the most recently used last
        self._eager: dict[OpenRun, None] = {}  # runs that may prefetch more, in turn
        self._to_list: dict[OpenRun, None] = {}
        self.unread_bytes = 0

    def __len__(self) -> int:
        return len(self._runs)

    def opened(self, ino: int, directory: bytes) -> None:
        """Records the open of a small file that missed."""
        run = self._find(ino)
        if run is None:
            return self._put(OpenRun(ino, ino, directory))
        if run.directory != directory:
            run.cross(directory)
        elif ino >= run.next:
            run.at_end = False
        run.here = 0
        self._move_on(run, ino)

    def used(self, ino: int) -> None:
        """Records the open of a cached file."""
        run = self._find(ino)
        if run is not None:
            self._move_on(run, ino)

    def next(self) -> tuple[OpenRun, int] | None:
        """Returns a run and a number to prefetch; None: nothing. The caller reports the result:
        `may_prefetch` for a file, then `begun`, `record_cached`, `record_not_small` or `drop`."""
        while self._eager:
            run = next(iter(self._eager))
            del self._eager[run]
            ino = run.next_ino(self._most_files)
            if ino:
                self._eager[run] = None  # to the end of the queue
                run.next += 1
                return run, ino
        return None

    def to_list(self) -> list[OpenRun]:
        """Returns the runs whose next directory to list; the current one has the file `at`."""
        found = [*self._to_list]
        self._to_list.clear()
        return found

    def begun(self, run: OpenRun, ino: int, size_bytes: int) -> None:
        """Records that the prefetch of a file has started."""
        run.here = run.gaps = 0
        if ino > run.at and self._is_known(run):
            run.unread[ino] = size_bytes
            self.unread_bytes += size_bytes

    def record_cached(self, run: OpenRun) -> None:
        """Records that a file was already cached or in flight."""
        run.gaps = 0
        run.here += 1
        if run.here >= MOST_HERE:
            self.drop(run)

    def record_not_small(self, run: OpenRun) -> None:
        """Records that a number is not a small file: removed, unused, a large file or a directory.
        After `MOST_GAPS` in a row, the directory is assumed to end: the run prefetches no more
        until a number beyond them is opened."""
        run.gaps += 1
        if run.gaps >= MOST_GAPS:
            self._end(run, run.next - run.gaps)

    def may_prefetch(self, run: OpenRun, ino: int, directory: bytes) -> bool:
        """Returns whether to prefetch a file in this directory. False ends the prefetch of the run
        until a file there is opened."""
        if directory != run.bringing:
            if run.border or run.at_end or not run.crossed:
                self._end(run, ino)
                return False
            run.bringing, run.border = directory, ino
        return True

    def _end(self, run: OpenRun, next_ino: int) -> None:
        if run.at_end:  # several numbers are located concurrently
            next_ino = min(next_ino, run.next)
        elif run.ended != next_ino and self._is_known(run):
            self._to_list[run] = None  # the next directory may not be listed yet
        run.at_end, run.next, run.gaps, run.ended = True, next_ino, 0, next_ino

    def listed(self, run: OpenRun) -> None:
        """Records that the next directory of a run was listed: it may have new numbers."""
        if run.at_end and run.crossed and self._is_known(run):
            run.at_end = False
            self._eager[run] = None

    def drop(self, run: OpenRun) -> None:
        """Ends a run, e.g. because a prefetch was refused or failed. Idempotent."""
        if self._is_known(run):
            del self._runs[run.at // REACH]
        self._eager.pop(run, None)
        self.unread_bytes -= sum(run.unread.values())
        run.unread.clear()

    # ---- runs ----

    def _find(self, ino: int) -> OpenRun | None:
        place = ino // REACH
        runs = self._runs
        return runs.get(place) or runs.get(place - 1) or runs.get(place + 1)

    def _is_known(self, run: OpenRun) -> bool:
        return self._runs.get(run.at // REACH) is run

    def _move_on(self, run: OpenRun, ino: int) -> None:
        del self._runs[run.at // REACH]
        first = run.first
        run.opened(ino)
        if run.border and ino >= run.border:
            run.cross(run.bringing)
        self._read(run, ino)
        if run.first != first:  # files that readers skipped count as read
            for left in [ino for ino in run.unread if ino < run.first]:
                self._read(run, left)
        self._put(run)
        if run.is_dense:
            self._eager[run] = None
            if not run.is_listed and (run.crossed or run.count >= LIST_AFTER):
                run.is_listed = True
                self._to_list[run] = None

    def _read(self, run: OpenRun, ino: int) -> None:
        self.unread_bytes -= run.unread.pop(ino, 0)

    def _put(self, run: OpenRun) -> None:
        """Puts a run at its place. Drops a run that it meets, and the least recently used run if
        there are more than `MOST_RUNS`."""
        other = self._runs.get(run.at // REACH)
        if other is not None:
            self.drop(other)
        self._runs[run.at // REACH] = run
        if len(self._runs) > MOST_RUNS:
            self.drop(next(iter(self._runs.values())))
