"""The trees of a host: links by name, and their records, which outlive the worker's process."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.simulator.origin import File
from worker.store.view_records import FILE, NameRecord

if TYPE_CHECKING:
    from tests.simulator.worker import WorkerHost

MODE: Final = 0o644


@dataclass(eq=False, slots=True)
class Tree:
    """`path` to `is_unsure`: its record, as `worker.store.view_records.ViewRecord`. `is_emptied`:
    a mount may show it, so it shows nothing any more. `links`: what a cover shows."""

    host: WorkerHost
    number: int
    path: bytes
    policy: str = ""
    cover: int = 0
    position: int = -1
    is_thawed: bool = False
    is_unsure: bool = False
    is_emptied: bool = False
    records: dict[bytes, NameRecord] = field(default_factory=dict)
    links: dict[bytes, File] = field(default_factory=dict)

    def link(self, path: bytes, file: File) -> None:
        assert self.records[path].content == file.key, "a link without a record"
        self.links[path] = file
        self.host.check_mounts()

    def unlink(self, paths: Collection[bytes]) -> None:
        for path in paths:
            self.links.pop(path, None)
        self.host.check_mounts()

    def empty(self) -> None:
        self.is_emptied = True
        self.unlink([*self.links])

    def forget(self, paths: Collection[bytes]) -> list[bytes]:
        """Deletes records; returns the contents that were in them."""
        gone = [self.records.pop(path) for path in paths if path in self.records]
        assert not self.links.keys() & set(paths), "a link without a record"
        return [record.content for record in gone]

    @property
    def contents(self) -> set[bytes]:
        return {record.content for record in self.records.values()}


def record_of(file: File) -> NameRecord:
    return NameRecord(file.ino, FILE, file.key, MODE, 0, 0, 0, file.size_bytes)


Job = Callable[[Callable[[], None]], None]  # calls what it gets at its end


class Turns:
    """One change of trees at a time, in the order of asking."""

    def __init__(self) -> None:
        self._waiting: list[Job] = []
        self._is_busy = False

    def take(self, job: Job) -> None:
        self._waiting.append(job)
        self._next()

    def _next(self) -> None:
        if not self._is_busy and self._waiting:
            self._is_busy = True
            self._waiting.pop(0)(self._over)

    def _over(self) -> None:
        self._is_busy = False
        self._next()
