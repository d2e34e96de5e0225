"""The whole of one history: hosts, files, readers, and what must hold whatever happens.

- a read gets the right bytes, or an error that something explains, within its deadline: its own
  node did not reach the origin;
- no cache is above its limit, and nothing goes that the master did not allow to go;
- all views of one epoch have the same owners;
- nothing comes from the origin while a peer that is known to have it could have given it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from cachefs.core import cluster as c
from cachefs.core.errors import CacheFSError
from cachefs.core.pages import split
from cachefs.core.placement import Placement, View
from tests.simulator import master
from tests.simulator.fetch import PIECE_PAGES
from tests.simulator.master import PERMITTED_S, MasterHost
from tests.simulator.names import Names
from tests.simulator.network import Network
from tests.simulator.origin import BAD, File, Origin
from tests.simulator.schedule import Schedule
from tests.simulator.worker import Bytes, WorkerHost, WorkerServer
from worker.fill.source import Purpose
from worker.migration.events import BLOCK_PAGES
from worker.peers.source_selection import Candidate, RequestMode

QUIET_DEADLINE_S = 3.0  # of a read while nothing goes wrong
ASKING_S = 0.02  # so long before it reads from the origin a worker asks the others
DEADLINE_S = 75.0  # whatever goes wrong: an owner that brings it in vain, then the origin


@dataclass(slots=True)
class Counts:
    """What a history was made of; `python -m tests.simulator` prints it."""

    reads: int = 0
    failed: int = 0
    pages: int = 0
    longest_s: float = 0.0
    evicted: int = 0
    promoted: int = 0
    demoted: int = 0
    given: int = 0  # blocks that reached their new owners
    views: int = 0
    covered: int = 0  # times that a directory was ready to be covered
    looks: int = 0  # at what covers show
    said: list[str] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Reading:
    """A read under way."""

    server: WorkerServer
    file: File
    pages: tuple[int, int]
    since_s: float


class World:
    """`calm`: nothing goes wrong, so more must hold."""

    def __init__(
        self, seed: int, files: list[File], *, calm: bool, migration_bytes_per_s: float
    ) -> None:
        self.random = random.Random(seed)
        self.calm = calm
        self.migration_bytes_per_s = migration_bytes_per_s
        self.replicas: dict[bytes, int] = {}  # by content, as policies say
        self.schedule = Schedule()
        self.network = Network(self.schedule, self.random)
        self.origin = Origin(self.random, files)
        self.master = MasterHost(self.schedule, self.network)
        self.hosts: dict[str, WorkerHost] = {}
        self.names: Names | None = None  # without, no directory is frozen
        self.numbers = itertools.count(1)
        self.counts = Counts()
        self.garbling = 0.0  # share of pages that change on their way
        self.last_fault_s = 0.0
        self.tracing = False
        self._owners_of: dict[int, tuple[tuple[str, float], ...]] = {}
        self._reading: set[Reading] = set()
        self._stops: list[tuple[WorkerServer, float, float]] = []

    def add(
        self, id: str, weight: float, limits_bytes: Sequence[int], admission: str
    ) -> WorkerHost:
        host = self.hosts[id] = WorkerHost(self, id, weight, limits_bytes, admission)
        host.start()
        return host

    def replace(self, host: WorkerHost, id: str) -> None:
        """The same machine and address, another worker."""
        host.crash()
        del self.hosts[host.id]
        new = WorkerHost(self, id, host.weight, host.limits_bytes, host.admission, url=host.url)
        self.hosts[id] = new
        new.start()

    def set_replicas(self, file: File, count: int) -> None:
        """A policy: everybody hears of it, a little later."""
        self.replicas[file.key] = count
        for host in self.hosts.values():
            if host.is_up and host.served is not None:
                host.served.policies_changed()

    def say(self, what: str) -> None:
        line = f"{self.schedule.now_s:8.3f} {what}"
        self.counts.said.append(line)
        if self.tracing:
            print(line)

    def fault(self, what: str) -> None:
        """Something goes wrong from now on."""
        assert not self.calm, "a calm history has no faults"
        self.last_fault_s = self.schedule.now_s
        self.say(what)

    def garbles(self) -> bool:
        return bool(self.garbling) and self.random.random() < self.garbling

    # ---- reads ----

    def read(self, host: WorkerHost, file: File, first: int, end: int) -> None:
        """Pages [first, end) as a mount of that host reads them, a piece after the other."""
        if host.served is not None and host.is_up and host.served.view.epoch >= 0:
            self._read_next(host.served, file, [*split(first, end, PIECE_PAGES)])

    def _read_next(self, server: WorkerServer, file: File, pieces: list[tuple[int, int]]) -> None:
        piece, *rest = pieces
        reading = Reading(server, file, piece, self.schedule.now_s)
        self._reading.add(reading)
        self.counts.reads += 1

        def done(found: Bytes | CacheFSError) -> None:
            self._reading.discard(reading)
            self._check_read(reading, found)
            if rest and not isinstance(found, CacheFSError):
                self._read_next(server, file, rest)

        server.get(file, *piece, Purpose.READ, done)

    def _check_read(self, reading: Reading, found: Bytes | CacheFSError) -> None:
        took_s = self.schedule.now_s - reading.since_s
        self.counts.longest_s = max(self.counts.longest_s, took_s)
        self._check_deadline(reading)
        if isinstance(found, CacheFSError):
            self.counts.failed += 1
            was_down = self.origin.away_until_s(reading.server.host.id) >= reading.since_s
            assert was_down, f"a read failed, but the origin was there: {found}"
            return
        key, (first, end) = reading.file.key, reading.pages
        assert found.keys() == set(range(first, end)), "other pages than were asked for"
        for page, value in found.items():
            if value == BAD and (key, page) in reading.server.host.disk.flipped:
                continue  # a bit that flipped on this node's own disk is found by the scrubber
            assert value == (key, page), f"page {page} of ino {reading.file.ino}: wrong bytes"
        self.counts.pages += len(found)

    def _check_deadline(self, reading: Reading) -> None:
        if reading.server.process.resumes_s > reading.since_s:
            return  # it was stopped: nobody's clock went on
        took_s = self.schedule.now_s - reading.since_s
        limit_s = QUIET_DEADLINE_S if self.calm else DEADLINE_S
        assert took_s <= limit_s, (
            f"a read of ino {reading.file.ino} at {reading.server.host.id} took {took_s:.1f} s"
        )

    def check_reads(self) -> None:
        """Those under way have their deadlines, too."""
        for reading in self._reading:
            self._check_deadline(reading)

    @property
    def readings(self) -> int:
        return len(self._reading)

    def ended(self, server: WorkerServer) -> None:
        """Its readers wait for the next process, which is none of this one's business."""
        self._count(server)
        gone = {reading for reading in self._reading if reading.server is server}
        self._reading -= gone

    # ---- what must hold ----

    def saw(self, server: WorkerServer, view: View) -> None:
        """A worker has this view."""
        owners = tuple((one.id, one.weight) for one in view.members)
        known = self._owners_of.setdefault(view.epoch, owners)
        assert known == owners, f"epoch {view.epoch} has two sets of owners: {known}, {owners}"
        self.counts.views += 1

    def evicts(self, server: WorkerServer, key: bytes) -> None:
        self.counts.evicted += 1
        server.host.check_unlinked(key)
        since_s = self.master.protected.get(key)
        assert since_s is None or self.schedule.now_s < since_s + PERMITTED_S, (
            "what the master protects was evicted"
        )

    def check_use_of_origin(
        self,
        server: WorkerServer,
        file: File,
        page: int,
        asked: Sequence[Candidate],
        excused: Collection[str],
        since_s: float,
    ) -> None:
        """`excused`: peers with whom something went wrong in this search, which began then, or
        who were asked for another page."""
        for candidate in asked:
            peer = self.hosts.get(candidate.peer)
            if peer is None or candidate.way is RequestMode.NEXT or candidate.peer in excused:
                continue
            if not peer.is_up or peer.served is None or peer.served.process.resumes_s > since_s:
                continue
            if (peer.id, file.key) in server.peers._wrong:
                continue
            there_s = peer.disk.since.get((file.key, page), self.schedule.now_s)
            assert there_s >= since_s, (
                f"{server.host.id} reads page {page} of ino {file.ino} from the origin, but "
                f"{peer.id} has had it since {there_s:.3f} and could be asked"
            )

    @property
    def is_quiet(self) -> bool:
        """Nothing is under way any more."""
        view = self.master.view()
        up = [host.served for host in self.hosts.values() if host.is_up and host.served]
        seen = all(served.view == view for served in up)
        at_work = self.calm and any(served.migration.is_at_work for served in up)
        return seen and not (up and view.before) and not self._reading and not at_work

    def _count(self, server: WorkerServer) -> None:
        self.counts.promoted += server.cache.promoted
        self.counts.demoted += server.cache.demoted
        self.counts.given += server.migration.giver.handed

    def count_all(self) -> None:
        """At the end: what those that still run have done."""
        for host in self.hosts.values():
            if host.served is not None and host.is_up:
                self._count(host.served)

    def check_end(self) -> None:
        """After some quiet time: everybody sees one view, nothing is left to move, no read hangs,
        all is within its limits."""
        view = self.master.view()
        assert not self._reading, f"{self.readings} reads never ended"
        for host in self.hosts.values():
            if host.served is not None and host.is_up:
                assert host.served.view == view, f"{host.id} has another view than the master"
                host.served.cache.check_invariants()
        assert not view.before or not self._unsettled(), (
            f"epoch {view.epoch} never settled: {self._unsettled()}"
        )

    def _unsettled(self) -> dict[str, dict[str, int]]:
        up = {id: host.served for id, host in self.hosts.items() if host.is_up}
        return {id: served.migration.status() for id, served in up.items() if served}

    def check_places(self) -> None:
        """Whatever somebody has, all its owners have: for histories in which everything fits. What
        was on its way to a worker while it heard of a change may stay there as a copy."""
        placement = Placement(self.master.view().members)
        up = [host for host in self.hosts.values() if host.is_up]
        for host in up:
            for key, pages in host.disk.pages.items():
                ino = self.origin.by_key[key].ino
                for page in pages:
                    if not all(read.up_to_date for read in self.origin.reads[key, page]):
                        continue
                    replicas = self.replicas.get(key, 1)
                    for owner in placement.owners(ino, page // BLOCK_PAGES, replicas):
                        has = page in self.hosts[owner.id].disk.pages.get(key, {})
                        assert has, (
                            f"{host.id} has page {page} of ino {ino}, its owner {owner.id} has not"
                        )

    def check_read_once(self) -> None:
        """No byte comes from the origin again once somebody has it, but to who does not know yet
        that it is somebody else's."""
        for (key, page), reads in self.origin.reads.items():
            for one in reads:
                again = any(other.ended_s < one.began_s - ASKING_S for other in reads)
                ino = self.origin.by_key[key].ino
                assert not (again and one.up_to_date and one.asked_for), (
                    f"page {page} of ino {ino} was read again at {one.began_s:.3f} s"
                )

    def drain(self, id: str) -> None:
        served = self.master.served
        assert served is not None
        served.serve(c.Drain(id), lambda answer: None)


__all__ = ["World", "master"]
