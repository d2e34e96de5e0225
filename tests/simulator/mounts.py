"""The mounts of a host: the covers that its kernel has, and the clients that lay and remove them,
with the real queue of orders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cachefs.fuse.covers.orders import LayOrder, Order, Orders, RemoveOrder
from tests.simulator.names import is_near
from tests.simulator.schedule import Process
from tests.simulator.trees import Tree

if TYPE_CHECKING:
    from tests.simulator.views import NodeViews
    from tests.simulator.worker import WorkerHost

CONNECT_S: Final = 0.2
LOOK_S: Final = 0.5
SUCCESSOR_S: Final = 2.0
TOUCHED: Final = "the kernel or another program removed the cover"


@dataclass(frozen=True, slots=True)
class Laid:
    """A cover as the kernel has it."""

    path: bytes
    tree: Tree


@dataclass(eq=False, slots=True)
class Mount:
    """What outlives the client. `position`: of the events that the mount was told of, before it has
    any client: -1. `covers`: by their numbers. `excused`: those that an earlier worker laid, and
    that this one could not have removed in time: before it is attached, a client resolves no path.
    """

    host: WorkerHost
    mountpoint: str
    position: int = -1
    covers: dict[int, Laid] = field(default_factory=dict)
    is_there: bool = True
    excused: set[int] = field(default_factory=set)
    client: Client | None = None

    def __str__(self) -> str:
        return f"{self.host.id} {self.mountpoint}"

    def start(self) -> None:
        if self.is_there and (self.client is None or not self.client.process.is_alive):
            self.client = Client(self)

    def told(self, position: int) -> None:
        """What changed until then is shown."""
        self.position = max(self.position, position)
        self.check()

    def check(self) -> None:
        """No cover shows what the mount would not show, or bytes that are not here."""
        names = self.host.world.names
        assert names is not None
        for number, laid in self.covers.items():
            if number in self.excused:
                continue
            shown = laid.tree.links
            if shown or not laid.tree.is_emptied:
                names.check_shown(str(self), shown, laid.path, max(self.position, 0))
            for file in shown.values():
                pages = self.host.disk.pages.get(file.key, {})
                assert len(pages) == file.pages, f"a cover shows a part of ino {file.ino}"
        self.host.world.counts.looks += bool(self.covers)


class Client:
    """One process that serves a mount. Its orders take time, one after the other."""

    def __init__(self, mount: Mount) -> None:
        self.mount = mount
        self.random = mount.host.world.random
        self.process = Process(mount.host.world.schedule, mount.host.id)
        self.session: Session | None = None
        self._orders = Orders()
        self._trees: dict[int, Tree] = {}
        self._known = {*mount.covers}
        self._busy: Order | None = None
        self._missing: dict[int, int] = {}
        self.is_ending = False
        self._connect()
        self.process.after(LOOK_S, self._look)

    # ---- the session ----

    def _connect(self) -> None:
        served = self.mount.host.served
        if self.session is not None and self.session.is_open:
            return
        if served is None or not served.process.is_alive or served.views is None:
            return self.process.after(CONNECT_S, self._connect)
        self.session = session = Session(served.views, self)
        for order in self._orders.drop_covers():
            self._trees.pop(order.tree)
        self._known = {*self.mount.covers}
        for number in sorted(self._known | self._in_progress()):
            self.report(number, covered=True)
        session.to_server(lambda: session.views.attach(session))

    def _in_progress(self) -> set[int]:
        return {self._busy.view} if isinstance(self._busy, LayOrder) else set()

    def attached(self, position: int, excused: set[int]) -> None:
        """The kernel distrusts all names, and what is covered below the root with them."""
        mount = self.mount
        mount.excused = excused
        mount.told(position)
        for number, laid in [*mount.covers.items()]:
            if laid.path and self.random.random() < 0.5:
                del mount.covers[number]

    def server_died(self) -> None:
        self.session = None
        self.process.after(self.random.uniform(0, 2 * CONNECT_S), self._connect)

    def report(self, number: int, *, covered: bool, reason: str = "") -> None:
        session = self.session
        if session is not None:
            session.to_server(
                lambda: session.views.reported(session, number, covered=covered, reason=reason)
            )

    # ---- orders ----

    def cover(self, number: int, tree: Tree) -> None:
        if self.is_ending:
            return self.report(number, covered=False, reason="the mount ends")
        self._trees[tree.number] = tree
        self._put(LayOrder(number, 1, tree.path, tree.number))

    def uncover(self, number: int) -> None:
        waits = self._orders.has(number) or number in self._in_progress()
        if waits or number in self._known:
            self._put(RemoveOrder(number))
        else:
            self.report(number, covered=False)

    def _put(self, order: Order) -> None:
        self._orders.put(order)
        self._next()

    def _next(self) -> None:
        if self._busy is None and (order := self._orders.next()) is not None:
            self._busy = order
            delay_s = self.random.choice([0.001, 0.01, 0.3])
            self.process.after(delay_s, lambda: self._execute(order))

    def _execute(self, order: Order) -> None:
        if isinstance(order, LayOrder):
            self._lay(order)
        else:
            self.mount.covers.pop(order.view, None)
            self._reported_soon(order.view, covered=False)

    def _lay(self, order: LayOrder) -> None:
        mount, tree = self.mount, self._trees[order.tree]
        if order.view not in mount.covers:
            taken = any(is_near(order.path, laid.path) for laid in mount.covers.values())
            if taken or self._orders.has(order.view) or not mount.is_there:
                return self._reported_soon(order.view, covered=False, reason="it is covered")
            mount.covers[order.view] = Laid(order.path, tree)
            mount.check()
        self._reported_soon(order.view, covered=True)

    def _reported_soon(self, number: int, *, covered: bool, reason: str = "") -> None:
        """A crash may come between a cover and its report."""

        def report() -> None:
            self._busy = None
            if covered:
                self._known.add(number)
            else:
                self._known.discard(number)
            self.report(number, covered=covered, reason=reason)
            self._next()

        self.process.after(0.001, report)

    # ---- covers that others remove ----

    def _look(self) -> None:
        self.process.after(LOOK_S, self._look)
        for number in sorted(self._known - self.mount.covers.keys()):
            if self._orders.has(number) or (self._busy and self._busy.view == number):
                continue
            self._known.discard(number)
            self.report(number, covered=False, reason=TOUCHED)

    # ---- its end ----

    def crash(self) -> None:
        """A successor comes soon."""
        self.process.is_alive = False
        self._leave()
        self.mount.host.world.schedule.after(
            self.random.uniform(0.05, SUCCESSOR_S), self.mount.start
        )

    def unmount(self) -> None:
        """The mount ends with its covers."""
        self.is_ending = True
        mount = self.mount
        for number in [*mount.covers]:
            self.report(number, covered=False, reason="unmounting")
        mount.covers.clear()
        mount.is_there = False
        self.process.is_alive = False
        self._leave()

    def _leave(self) -> None:
        session, self.session = self.session, None
        if session is not None:
            session.close()


class Session:
    """The socket between a client and a worker, in order, as the worker knows it (`CoverHost`)."""

    def __init__(self, views: NodeViews, client: Client) -> None:
        self.views = views
        self.client = client
        self.mountpoint = client.mount.mountpoint
        self.is_open = True
        self._schedule = client.process.schedule
        self._random = client.random
        self._due_s = {True: 0.0, False: 0.0}
        views.sessions.append(self)

    def to_server(self, call: Callable[[], None]) -> None:
        self._send(self.views.process, call, to_server=True)

    def to_client(self, call: Callable[[], None]) -> None:
        self._send(self.client.process, call, to_server=False)

    def _send(self, process: Process, call: Callable[[], None], *, to_server: bool) -> None:
        due_s = self._schedule.now_s + self._random.uniform(0.0, 0.002)
        self._due_s[to_server] = due_s = max(due_s, self._due_s[to_server])

        self._schedule.at(due_s, call, process)

    def send_attached(self, position: int, excused: set[int]) -> None:
        self.to_client(lambda: self.client.attached(position, excused))

    def send_told(self, position: int) -> None:
        self.to_client(lambda: self.client.mount.told(position))

    def send_cover(self, number: int, tree: Tree) -> None:
        self.to_client(lambda: self.client.cover(number, tree))

    def send_uncover(self, number: int) -> None:
        self.to_client(lambda: self.client.uncover(number))

    def close(self) -> None:
        """The client ended: the worker sees that after what it has sent."""
        self.is_open = False
        is_followed = self.client.mount.is_there
        self.to_server(lambda: self.views.left(self, is_followed=is_followed))

    def server_died(self) -> None:
        self.is_open = False
        self._schedule.after(0.001, self.client.server_died, self.client.process)
