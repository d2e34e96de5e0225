"""The control group of a cluster: one directory of the same name in every hierarchy of the machine,
with every process of the cluster, its containers too, below it."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
from pathlib import Path
from typing import Final

from tests.services.control_group import pids_in, remove_group
from tests.services.processes import wait_until

# Of one run, in its inner processes too: others may run on this machine.
RUN: Final = os.environ.setdefault("CACHEFS_TEST_KUBE_RUN", secrets.token_hex(3))
PREFIX: Final = f"cachefs-kube-{RUN}-"
END_S: Final = 20.0


def hierarchies() -> list[Path]:
    """Returns where the control groups of the machine are mounted: one place for each set of
    controllers (version 1), and the one of version 2."""
    lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [Path(fields[1]) for fields in lines if fields[2] in ("cgroup", "cgroup2")]


def all_groups() -> list[Path]:
    """Returns the groups of clusters on this machine, of which some may not have been removed."""
    return [path for where in hierarchies() for path in where.glob(f"{PREFIX}*")]


class ControlGroup:
    """The groups of one cluster, from `make` to `remove`; `places` has its directories."""

    def __init__(self, name: str) -> None:
        assert name.startswith(PREFIX)
        self.name = name
        self.places = [where / name for where in hierarchies()]

    def make(self) -> None:
        for group in self.places:
            group.mkdir(exist_ok=True)
            for name in ("cpuset.cpus", "cpuset.mems"):  # a group of version 1 starts without any
                if (group / name).exists() and not (group / name).read_text().strip():
                    (group / name).write_text((group.parent / name).read_text())

    def pids(self) -> set[int]:
        """Returns the processes in the group and in those below it."""
        return set().union(*map(pids_in, self.places))

    def kill(self) -> None:
        """Ends every process in the group by SIGKILL. Raises NotInTime if one is left."""

        def is_empty() -> bool:
            for pid in self.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not self.pids()

        wait_until(is_empty, f"the processes of {self.name} end", END_S)

    def remove(self) -> None:
        """Removes the empty groups. Raises NotInTime if the kernel keeps one."""

        def are_removed() -> bool:
            for group in self.places:
                with contextlib.suppress(OSError):  # an ended process may still be counted
                    remove_group(group)
            return not any(group.exists() for group in self.places)

        wait_until(are_removed, f"the control groups of {self.name} are removed", END_S)
