"""The masters of clusters, as a command asks them what is wrong.

A master may be stopped, so that it gives no answer and refuses no connection. A command asks each
master once, however many mounts are of it.
"""

from __future__ import annotations

from typing import Final

from cachefs.cli import clusters
from cachefs.cli.owners import check_master
from cachefs.client.admin import AdminClient
from cachefs.core.config import Config
from cachefs.core.errors import (
    CacheFSError,
    DeadlineExceeded,
    NotFound,
    ProtocolError,
    Unreachable,
)
from cachefs.core.health import HealthProblem, problem
from cachefs.launcher.state import MountRecord

ANSWER_S: Final = 3.0


class Masters:
    """Asks masters with the flags and the credentials of one command, and keeps their answers."""

    def __init__(self, chosen: Config) -> None:
        self._chosen = chosen
        self._answers: dict[str, list[HealthProblem]] = {}

    def of_record(self, record: MountRecord) -> list[HealthProblem]:
        """Returns what the master of a cluster's mount says is wrong; nothing where the master may
        not be asked."""
        try:
            check_master(record, self._chosen)
            master, _ = clusters.admin_of(record.source.url, self._chosen)
            with master:
                return self.problems(master)
        except CacheFSError:
            return []

    def problems(self, master: AdminClient) -> list[HealthProblem]:
        """Returns what a master says is wrong, MASTER_AWAY if it does not answer. Raises
        AccessDenied for a token that is limited to a path."""
        if master.url not in self._answers:
            self._answers[master.url] = of_master(master)
        return self._answers[master.url]

    def away(self, url: str) -> list[HealthProblem]:
        """Returns the problem of a master that was asked already and gave no answer, in a list;
        nothing of any other."""
        return [one for one in self._answers.get(url, []) if is_away(one)]


def of_master(master: AdminClient) -> list[HealthProblem]:
    """Returns what a master says is wrong; MASTER_AWAY if it does not answer. A master of an
    earlier version says nothing. Raises AccessDenied for a token that is limited to a path."""
    try:
        return master.health(ANSWER_S)
    except (Unreachable, DeadlineExceeded) as err:
        return [away(master.url, err)]
    except (NotFound, ProtocolError):
        return []


def away(url: str, err: CacheFSError) -> HealthProblem:
    """Returns the problem of a master that gave no answer."""
    remedy = err.remedy or "start it: cachefs master"
    return problem("MASTER_AWAY", url, err.cause, remedy)


def is_away(found: HealthProblem) -> bool:
    """Returns True for the problem of a master that gave no answer."""
    return found.code == "MASTER_AWAY"
