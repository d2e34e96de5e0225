"""A control group of tests, in the hierarchy of version 2: it knows every process that was started
in it, and the kernel ends them all at once, as those of a container that is out of memory."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from tests.services.processes import wait_until

END_S: Final = 20.0
_ENTER: Final = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


def hierarchy() -> Path:
    """Returns where the hierarchy of version 2 is mounted. Fails if it is not."""
    lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    found = [Path(fields[1]) for fields in lines if fields[2] == "cgroup2"]
    assert found, "the machine mounts no control groups of version 2"
    return found[0]


class ControlGroup:
    """A group, from its making to `remove`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(exist_ok=True)

    def below(self, name: str) -> ControlGroup:
        """Returns a group of this one, and makes it if it is not there."""
        return ControlGroup(self.path / name)

    def entered_by(self, *command: str) -> list[str]:
        """Returns what runs the command, and all that it starts, in this group."""
        return ["sh", "-c", _ENTER, str(self.path), *command]

    def pids(self) -> set[int]:
        """Returns the processes in the group and in those below it, without zombies."""
        return pids_in(self.path)

    def kill(self) -> None:
        """Ends every process in the group by SIGKILL. Raises NotInTime if one is left."""
        (self.path / "cgroup.kill").write_text("1")
        wait_until(lambda: not self.pids(), f"the processes of {self.path.name} end", END_S)

    def remove(self) -> None:
        """Removes the group and those below it. Raises OSError if one has a process."""
        remove_group(self.path)


def pids_in(group: Path) -> set[int]:
    """Returns the processes in a group and in those below it."""
    found: set[int] = set()
    for path in (group, *groups_below(group)):
        with contextlib.suppress(OSError):  # the group was removed
            found |= {int(pid) for pid in (path / "cgroup.procs").read_text().split()}
    return found


def remove_group(group: Path) -> None:
    """Removes a group and those below it. Raises OSError if one has a process."""
    for path in (*reversed(groups_below(group)), group):
        path.rmdir()


def groups_below(group: Path) -> list[Path]:
    """Returns the groups below one, each before those below it. A group that is removed meanwhile,
    as the kubelet does with those of an ended pod, may be missing."""
    return [Path(where, name) for where, names, _ in os.walk(group) for name in names]
