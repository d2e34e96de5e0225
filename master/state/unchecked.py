"""Names that events reported and that were not compared with the origin since. Pure, bounded.

An answer from the store is not fresh for such a name. The order of marks and requests decides: a
request to the origin counts for a name only if it began after the name's last mark.
"""

from __future__ import annotations

from typing import Final

MAX_NAMES: Final = 100_000
MAX_IN_DIRECTORY: Final = 10_000
ALL: Final = b""  # stands for every name of a directory


class UncheckedNames:
    """Directories with unchecked names, the one that waits longest first."""

    def __init__(self) -> None:
        self._by_directory: dict[int, dict[bytes, int]] = {}
        self.marks = 0  # up to now; a request takes the number before it begins
        self._count = 0

    def mark(self, directory: int, name: bytes) -> bytes | None:
        """Marks a name. Returns the name to record: `ALL` where a directory has too many, None
        where there are too many directories."""
        names = self._by_directory.get(directory, {})
        if name not in names and ALL not in names and self._count >= MAX_NAMES:
            return None
        if ALL in names or (len(names) >= MAX_IN_DIRECTORY and name not in names):
            name = ALL
        if name == ALL:
            self._drop(directory, [one for one in names if one != ALL])
        self.marks += 1
        names = self._by_directory.setdefault(directory, {})
        self._count += name not in names
        names[name] = self.marks
        return name

    def covers(self, directory: int, name: bytes) -> bool:
        """Returns whether the name is unchecked."""
        names = self._by_directory.get(directory)
        return names is not None and (name in names or ALL in names)

    def concerns(self, directory: int) -> bool:
        """Returns whether the directory has unchecked names."""
        return directory in self._by_directory

    def checked(self, directory: int, name: bytes, marks: int) -> None:
        """Ends the mark of one name, which a request that began at `marks` compared."""
        if self._by_directory.get(directory, {}).get(name, marks + 1) <= marks:
            self._drop(directory, [name])

    def listed(self, directory: int, marks: int) -> None:
        """Ends the marks of a directory, which a listing that began at `marks` compared."""
        names = self._by_directory.get(directory, {})
        self._drop(directory, [name for name, mark in names.items() if mark <= marks])

    def forget(self, directory: int) -> None:
        """Ends the marks of a directory that is not there any more."""
        self._drop(directory, [*self._by_directory.get(directory, ())])

    def directories(self) -> list[int]:
        """Returns the directories with unchecked names, the one that waits longest first."""
        return [*self._by_directory]

    def names(self, directory: int) -> list[bytes]:
        """Returns the unchecked names of a directory."""
        return [*self._by_directory.get(directory, ())]

    def _drop(self, directory: int, names: list[bytes]) -> None:
        kept = self._by_directory.get(directory)
        if kept is None:
            return
        for name in names:
            self._count -= kept.pop(name, None) is not None
        if not kept:
            del self._by_directory[directory]

    def __len__(self) -> int:
        return self._count
