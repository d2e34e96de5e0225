"""The names at the origin, and the position of each of their changes, as the master has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tests.simulator.origin import File

KEPT_EVENTS: Final = 12  # who is further behind must distrust all names

Shown = Mapping[bytes, File]  # by path


@dataclass(frozen=True, slots=True)
class ListNames:
    """Asks for the names below a path."""

    path: bytes


@dataclass(frozen=True, slots=True)
class Listing:
    names: Shown


@dataclass(frozen=True, slots=True)
class GetEvents:
    """Asks for the events after a position; -1: for the position only."""

    after: int


@dataclass(frozen=True, slots=True)
class Events:
    """`changed`: the paths of each event after the position asked for; None: too many to tell."""

    position: int
    changed: tuple[frozenset[bytes], ...] | None


class Names:
    """`versions[p]`: the names after the event number p."""

    def __init__(self, names: Shown) -> None:
        self.versions: list[Shown] = [dict(names)]
        self._changed: list[frozenset[bytes]] = [frozenset()]

    @property
    def position(self) -> int:
        return len(self.versions) - 1

    @property
    def now(self) -> Shown:
        return self.versions[-1]

    def change(self, changed: Mapping[bytes, File | None]) -> None:
        """The origin has other files at these paths, or none."""
        names = {**self.now, **changed}
        self.versions.append({path: file for path, file in names.items() if file is not None})
        self._changed.append(frozenset(changed))

    def answer(self, request: ListNames | GetEvents) -> Listing | Events:
        if isinstance(request, ListNames):
            return Listing(below(self.now, request.path))
        behind = self.position - request.after
        if request.after < 0 or behind > KEPT_EVENTS:
            return Events(self.position, None)
        return Events(self.position, tuple(self._changed[request.after + 1 :]))

    def check_shown(self, mount: str, shown: Shown, path: bytes, position: int) -> None:
        """A mount that was told of the events up to `position` shows each name as it was then, or
        as it became later."""
        some = [below(names, path) for names in self.versions[position:]]
        for name in {*shown, *(name for names in some for name in names)}:
            right = [names.get(name) for names in some]
            found = _ino(shown.get(name))
            assert shown.get(name) in right, (
                f"a cover of {mount} at {path!r} shows {found} as {name!r}, but since event "
                f"{position} it is {[*map(_ino, right)]}"
            )


def _ino(file: File | None) -> str:
    return "nothing" if file is None else f"ino {file.ino}"


def is_at_or_below(path: bytes, top: bytes) -> bool:
    return not top or path == top or path.startswith(top + b"/")


def is_near(one: bytes, other: bytes) -> bool:
    return is_at_or_below(one, other) or is_at_or_below(other, one)


def below(names: Shown, top: bytes) -> dict[bytes, File]:
    return {path: file for path, file in names.items() if is_at_or_below(path, top)}
