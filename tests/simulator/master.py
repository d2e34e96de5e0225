"""The master's process: the real membership, its record on a disk, permissions to evict."""

from __future__ import annotations

import msgspec

from cachefs.core import cluster as c
from cachefs.core.errors import CacheFSError
from cachefs.core.messages import Done
from cachefs.core.placement import View
from master.state.member_record import Record, decode_record, encode_record
from master.state.membership import (
    TICK_S,
    Membership,
    Outcome,
    Tick,
)
from tests.simulator.names import GetEvents, ListNames, Names
from tests.simulator.network import Done as Reply
from tests.simulator.network import Network
from tests.simulator.origin import NAMESPACE
from tests.simulator.schedule import Process, Schedule

URL = "http://master:19998"
HOST = "master"
PERMITTED_S = 10.0


class MasterHost:
    """What outlives the master's process. `protected`: since when each content may not go."""

    def __init__(self, schedule: Schedule, network: Network) -> None:
        self.schedule = schedule
        self.network = network
        self.record = encode_record(Record())
        self.protected: dict[bytes, float] = {}
        self.served: MasterServer | None = None
        self.saw_view: list[View] = []
        self.names: Names | None = None

    @property
    def is_up(self) -> bool:
        return self.served is not None and self.served.process.is_alive

    def start(self) -> None:
        if not self.is_up:
            self.served = MasterServer(self)
            self.network.listen(URL, self.served)

    def crash(self) -> None:
        if self.served is not None:
            self.served.process.is_alive = False
            self.network.died(self.served.process)

    def view(self) -> View:
        assert self.served is not None
        return self.served.membership.view

    def is_protected(self, key: bytes) -> bool:
        return key in self.protected

    def protect(self, key: bytes) -> bool:
        """False while there is no master to say so."""
        if self.is_up:
            self.protected.setdefault(key, self.schedule.now_s)
        return self.is_up


class MasterServer:
    """One process."""

    def __init__(self, host: MasterHost) -> None:
        self.host = host
        self.process = Process(host.schedule, HOST)
        self.membership = Membership(host.schedule.now_s, decode_record(host.record))
        self._tick()

    def _tick(self) -> None:
        self._handle(Tick())
        self.process.after(TICK_S, self._tick)

    def serve(self, request: object, reply: Reply) -> None:
        try:
            reply(self._answer(request))
        except CacheFSError as err:
            reply(err)

    def _answer(self, request: object) -> object:
        match request:
            case c.Register():
                view = self._handle(request).answer
                assert isinstance(view, View)
                return c.Registered(NAMESPACE, view)
            case c.Heartbeat() | c.Leave() | c.Drain() | c.RemoveWorker():
                return self._handle(request).answer
            case c.GetView():
                return c.ViewReply(self.membership.view)
            case c.PermitEviction(_, contents):
                allowed = [not self.host.is_protected(key) for key in contents]
                return c.Permitted(allowed, PERMITTED_S)
            case ListNames() | GetEvents():
                assert self.host.names is not None
                return self.host.names.answer(request)
        raise AssertionError(f"not for a master: {request}")

    def _handle(self, event: msgspec.Struct) -> Outcome:
        outcome = self.membership.handle(event, self.process.now_s)  # type: ignore[arg-type]
        if outcome.save:
            self.host.record = encode_record(self.membership.record())
        if outcome.changed:
            self.membership.check_invariants()
            self.host.saw_view.append(self.membership.view)
        return outcome


__all__ = ["HOST", "URL", "Done", "MasterHost", "MasterServer"]
