"""The masters of clusters, as a command asks them what is wrong.

A master may be stopped, so that it gives no answer and refuses no connection. A command asks each
master once, however many mounts are of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cachefs.cli import clusters
from cachefs.cli.owners import check_master
from cachefs.cli.remedies import completed
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
            found = _of_master(master)
            self._answers[master.url] = [completed(one, master.url, self._chosen) for one in found]
        return self._answers[master.url]

    def from_node(self, found: Iterable[HealthProblem]) -> list[HealthProblem]:
        """Returns what a node of a cluster says is wrong, with a remedy as a master's."""
        return [completed(one, one.subject, self._chosen) if is_away(one) else one for one in found]

    def away(self, url: str) -> list[HealthProblem]:
        """Returns the problem of a master that was asked already and gave no answer, in a list;
        nothing of any other."""
        return [one for one in self._answers.get(url, []) if is_away(one)]

    def silent(self, url: str, err: CacheFSError) -> list[HealthProblem]:
        """Returns the problem of a master that another question got no answer from, in a list;
        nothing where `err` says another thing."""
        if not isinstance(err, Unreachable | DeadlineExceeded):
            return []
        return [completed(_away(url, err), url, self._chosen)]


def _of_master(master: AdminClient) -> list[HealthProblem]:
    """Returns what a master says is wrong; MASTER_AWAY if it does not answer. A master of an
    earlier version says nothing. Raises AccessDenied for a token that is limited to a path."""
    try:
        return master.health(ANSWER_S)
    except (Unreachable, DeadlineExceeded) as err:
        return [_away(master.url, err)]
    except (NotFound, ProtocolError):
        return []


def _away(url: str, err: CacheFSError) -> HealthProblem:
    """Returns the problem of a master that gave no answer."""
    remedy = err.remedy or "start it: cachefs master"
    return problem("MASTER_AWAY", url, err.cause, remedy)


def is_away(found: HealthProblem) -> bool:
    """Returns True for the problem of a master that gave no answer."""
    return found.code == "MASTER_AWAY"
