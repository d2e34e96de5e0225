"""The masters of clusters, and the problems that they report to one command.

A stopped master gives no answer and refuses no connection. A command therefore sends each master
one request, however many mounts use it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cachefs.cli import clusters
from cachefs.cli.owners import check_master
from cachefs.cli.remedies import completed
from cachefs.client.admin import AdminClient
from cachefs.core.config import Config
from cachefs.core.errors import CacheFSError, DeadlineExceeded, NotFound, ProtocolError, Unreachable
from cachefs.core.health import HealthProblem, problem
from cachefs.launcher.state import MountRecord

ANSWER_S: Final = 3.0


class Masters:
    """The problems that masters report, fetched with the settings of one command and kept."""

    def __init__(self, chosen: Config) -> None:
        self._chosen = chosen
        self._answers: dict[str, list[HealthProblem]] = {}
        self.refused: list[str] = []  # why the configured one could not be asked

    def of_record(self, record: MountRecord) -> list[HealthProblem]:
        """Returns the problems that a mount's master reports; none if the command may not call
        it."""
        try:
            check_master(record, self._chosen)
            chosen = clusters.of_mount(record, self._chosen)
            master, _ = clusters.admin_of(record.source.url, chosen)
            with master:
                return self._problems(master, chosen)
        except CacheFSError:
            return []

    def of_configured(self) -> list[HealthProblem]:
        """Returns the problems that the configured master reports, or MASTER_AWAY. Adds to
        `refused` if the command may not call it."""
        try:
            with clusters.connect_admin(self._chosen) as master:
                return self.problems(master)
        except CacheFSError as err:
            self.refused.append(err.one_line())
            return []

    def problems(self, master: AdminClient) -> list[HealthProblem]:
        """Returns the problems that a master reports, or MASTER_AWAY if it does not answer. Raises
        AccessDenied for a token that is limited to a path."""
        return self._problems(master, self._chosen)

    def _problems(self, master: AdminClient, chosen: Config) -> list[HealthProblem]:
        if master.url not in self._answers:
            found = _of_master(master)
            self._answers[master.url] = [completed(one, master.url, chosen) for one in found]
        return self._answers[master.url]

    def from_node(self, found: Iterable[HealthProblem]) -> list[HealthProblem]:
        """Returns the problems that a node reports, with remedies completed as those of its
        master."""
        return [completed(one, one.subject, self._chosen) if is_away(one) else one for one in found]

    def away(self, url: str) -> list[HealthProblem]:
        """Returns the MASTER_AWAY problem of a master that has already failed to answer; else
        []."""
        return [one for one in self._answers.get(url, []) if is_away(one)]

    def silent(self, url: str, err: CacheFSError) -> list[HealthProblem]:
        """Returns the MASTER_AWAY problem if `err` of another request means no answer; else []."""
        if not isinstance(err, Unreachable | DeadlineExceeded):
            return []
        return [completed(_away(url, err), url, self._chosen)]


def _of_master(master: AdminClient) -> list[HealthProblem]:
    """Returns the problems that a master reports, or MASTER_AWAY if it does not answer. A master of
    an earlier version reports none. Raises AccessDenied for a token that is limited to a path."""
    try:
        return master.health(ANSWER_S)
    except (Unreachable, DeadlineExceeded) as err:
        return [_away(master.url, err)]
    except (NotFound, ProtocolError):
        return []


def _away(url: str, err: CacheFSError) -> HealthProblem:
    """Returns the problem of a master that does not answer."""
    remedy = err.remedy or "start it: cachefs master"
    return problem("MASTER_AWAY", url, err.cause, remedy)


def is_away(found: HealthProblem) -> bool:
    """Returns True for the problem of a master that does not answer."""
    return found.code == "MASTER_AWAY"
