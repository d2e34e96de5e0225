"""Which small files to bring before they are opened. Pure.

A namespace numbers files in the order in which their source lists them. A program that goes through
a directory by name (a first epoch that is not shuffled, `cp -r`, a scan) opens ascending numbers,
more or less: several at once, a few left out. Such opens make a *run*. Once enough of a run's
numbers were opened, the next ones of the same directory are brought, as many as twice what was
opened of it lately: so what is brought in vain is bounded, by count and by bytes. Opens in a random
order make no run, and bring nothing.

Only what had to wait begins a run, or lets one cross into another directory for the first time; a
run that has crossed once goes on with the files of the next directory before one of them is opened.
Opens of what is cached move a run on. Where file after file is cached already, the run ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

LEAST_OPENS: Final = 8  # of a run, before anything is brought for it
REACH: Final = 64  # numbers: how far from a run's last open the next one may be
MOST_FILES: Final = 256  # brought beyond a run's last open, where nothing else is said
MOST_SPAN: Final = 512  # of a run's numbers that are looked back upon
MOST_RUNS: Final = 64
MOST_HERE: Final = 32  # in a row were cached already
MOST_GAPS: Final = 64  # numbers in a row that are no small files
LIST_AFTER: Final = 128  # opens in a directory, before the one behind it is listed


@dataclass(eq=False, slots=True)
class Run:
    """Opens in ascending order. `count` of the numbers from `first` to `at` were opened; those
    below `next` were brought, or need not be. `unread`: sizes of what was brought, by number, until
    it is opened. `directory`: of what was opened last; of what is brought it is `bringing`, from
    the number `border` on where that is the directory behind."""

    first: int
    at: int
    directory: bytes
    count: int = 1
    next: int = 0
    here: int = 0
    gaps: int = 0
    at_end: bool = False  # of the directory, at `next`
    ended: int = 0  # the last such number
    is_listed: bool = False  # the directory behind, as far as it is up to us
    crossed: bool = False  # opens went on in another directory
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
        """Files are opened in this directory from now on."""
        self.directory = self.bringing = directory
        self.border, self.at_end, self.is_listed, self.crossed = 0, False, False, True

    def next_ino(self, most_files: int) -> int:
        """The number to bring now; 0: none."""
        self.next = max(self.next, self.at + 1)
        if self.at_end or self.next > self.at + min(most_files, 2 * self.count):
            return 0
        return self.next


class FilesAhead:
    """The runs of one namespace."""

    def __init__(self, most_files: int = MOST_FILES) -> None:
        self._most_files = most_files
        self._runs: dict[int, Run] = {}  # by last open, in units of REACH; the latest used last
        self._eager: dict[Run, None] = {}  # those for which more may be brought
        self._to_list: dict[Run, None] = {}
        self.unread_bytes = 0

    def __len__(self) -> int:
        return len(self._runs)

    def opened(self, ino: int, directory: bytes) -> None:
        """A small file was opened and had to wait."""
        run = self._find(ino)
        if run is None:
            return self._put(Run(ino, ino, directory))
        if run.directory != directory:
            run.cross(directory)
        elif ino >= run.next:
            run.at_end = False
        run.here = 0
        self._move_on(run, ino)

    def used(self, ino: int) -> None:
        """A cached file was opened."""
        run = self._find(ino)
        if run is not None:
            self._move_on(run, ino)

    def next(self) -> tuple[Run, int] | None:
        """What to bring now: the number of a file, perhaps; one of the next four tells what came of
        it."""
        while self._eager:
            run = next(iter(self._eager))
            del self._eager[run]
            ino = run.next_ino(self._most_files)
            if ino:
                self._eager[run] = None  # the others before it
                run.next += 1
                return run, ino
        return None

    def to_list(self) -> list[Run]:
        """The runs behind whose directories (of the files `at`) the next one is worth listing."""
        found = [*self._to_list]
        self._to_list.clear()
        return found

    def begun(self, run: Run, ino: int, size_bytes: int) -> None:
        """It is being brought."""
        run.here = run.gaps = 0
        if ino > run.at and self._is_known(run):
            run.unread[ino] = size_bytes
            self.unread_bytes += size_bytes

    def was_here(self, run: Run) -> None:
        """It is cached, or somebody brings it."""
        run.gaps = 0
        run.here += 1
        if run.here >= MOST_HERE:
            self.drop(run)

    def was_none(self, run: Run) -> None:
        """It is no small file: one that is gone or was never there, a large one, a directory. After
        many the directory seems to have ended: nothing more is brought until a number behind them
        was opened."""
        run.gaps += 1
        if run.gaps >= MOST_GAPS:
            self._end(run, run.next - run.gaps)

    def goes_on(self, run: Run, ino: int, directory: bytes) -> bool:
        """It lies in this directory: is it to be brought? False: nothing more is, until a file
        there was opened."""
        if directory != run.bringing:
            if run.border or run.at_end or not run.crossed:
                self._end(run, ino)
                return False
            run.bringing, run.border = directory, ino
        return True

    def _end(self, run: Run, next_ino: int) -> None:
        if run.at_end:  # several are asked about at a time
            next_ino = min(next_ino, run.next)
        elif run.ended != next_ino and self._is_known(run):
            self._to_list[run] = None  # it may not have been listed in time
        run.at_end, run.next, run.gaps, run.ended = True, next_ino, 0, next_ino

    def listed(self, run: Run) -> None:
        """There may be more numbers now where the run's directory ended."""
        if run.at_end and run.crossed and self._is_known(run):
            run.at_end = False
            self._eager[run] = None

    def drop(self, run: Run) -> None:
        """There is no room for it, or bringing fails. Idempotent."""
        if self._is_known(run):
            del self._runs[run.at // REACH]
        self._eager.pop(run, None)
        self.unread_bytes -= sum(run.unread.values())
        run.unread.clear()

    # ---- runs ----

    def _find(self, ino: int) -> Run | None:
        place = ino // REACH
        runs = self._runs
        return runs.get(place) or runs.get(place - 1) or runs.get(place + 1)

    def _is_known(self, run: Run) -> bool:
        return self._runs.get(run.at // REACH) is run

    def _move_on(self, run: Run, ino: int) -> None:
        del self._runs[run.at // REACH]
        first = run.first
        run.opened(ino)
        if run.border and ino >= run.border:
            run.cross(run.bringing)
        self._read(run, ino)
        if run.first != first:  # what readers left out they do not come back for
            for left in [brought for brought in run.unread if brought < run.first]:
                self._read(run, left)
        self._put(run)
        if run.is_dense:
            self._eager[run] = None
            if not run.is_listed and (run.crossed or run.count >= LIST_AFTER):
                run.is_listed = True
                self._to_list[run] = None

    def _read(self, run: Run, ino: int) -> None:
        self.unread_bytes -= run.unread.pop(ino, 0)

    def _put(self, run: Run) -> None:
        """Two runs that meet are one; the one that was not used for longest gives way."""
        other = self._runs.get(run.at // REACH)
        if other is not None:
            self.drop(other)
        self._runs[run.at // REACH] = run
        if len(self._runs) > MOST_RUNS:
            self.drop(next(iter(self._runs.values())))
