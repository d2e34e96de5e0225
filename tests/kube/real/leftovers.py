"""What a cluster that has ended may not leave: processes, mounts, control groups, files."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.kube.real.cgroups import PREFIX, ControlGroup, all_groups
from tests.services.processes import NotInTime, families, wait_until

END_S: Final = 10.0


def files() -> list[Path]:
    """Returns the directories of clusters. They have the prefix of the control groups."""
    return [*Path(tempfile.gettempdir()).glob(f"{PREFIX}*")]


def outside() -> set[str]:
    """Returns what is left outside of the namespaces of tests."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    mounts = {line for line in lines if PREFIX in line}
    return {*map(str, files()), *map(str, all_groups()), *mounts}


def remove(left: set[str]) -> None:
    """Removes groups and files of tests that were killed, all processes of which end. Raises
    NotInTime if one does not."""
    for name in {group.name for group in all_groups() if str(group) in left}:
        ControlGroup(name).remove()
    for path in files():
        if str(path) in left:
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """Raises AssertionError if something stays at the end that was not there at the start. For the
    inside of the namespaces, where the first process is an ancestor of all. An ended process is
    there until that one has collected it, and another cluster runs short commands meanwhile."""
    before = _state()
    yield
    left: dict[str, set[str]] = {}

    def is_as_before() -> bool:
        left.update({name: found - before[name] for name, found in _state().items()})
        return not any(left.values())

    with contextlib.suppress(NotInTime):
        wait_until(is_as_before, "nothing is left", END_S)
    assert not any(left.values()), left


def _state() -> dict[str, set[str]]:
    return {
        "processes": {*map(str, families([1]))},
        "mounts": {*Path("/proc/self/mountinfo").read_text().splitlines()},
        "control groups": {*map(str, all_groups())},
        "files": {*map(str, files())},
    }
