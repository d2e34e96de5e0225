"""One process of a cluster, with its log: etcd, a part of the control plane, containerd, the
kubelet."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from tests.kube.real.cgroups import ControlGroup

END_S: Final = 10.0
_IN_GROUPS: Final = (
    'while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs"; shift; done; shift; exec "$@"'
)


class Part:
    """A process that runs from the object's creation to `kill`."""

    def __init__(
        self, name: str, command: list[str], log: Path, environment: dict[str, str],
        group: ControlGroup,
    ) -> None:  # fmt: skip
        self.name = name
        self._log = log
        with open(log, "wb") as file:
            self.popen = subprocess.Popen(
                ["sh", "-c", _IN_GROUPS, "sh", *map(str, group.places), "--", *command],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment,
                cwd=log.parent, start_new_session=True,
            )  # fmt: skip

    @property
    def is_running(self) -> bool:
        return self.popen.poll() is None

    def kill(self) -> None:
        """Ends the process by SIGKILL: a cluster keeps nothing."""
        self.popen.kill()
        self.popen.wait(END_S)

    def tail(self, lines: int) -> str:
        """Returns the last lines of the log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])
