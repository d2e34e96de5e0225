"""A master as a node asks it, without a network: a small tree that tests change, calls that can be
held back, and a switch that makes it unreachable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.errors import CacheFSError, NotFound, PositionGone, Stale
from cachefs.core.model import ROOT_INO, ContentId, Inode, Kind, NamespaceId, Origin, UfsSpec
from worker.membership.master_client import MasterUnreachable

NAMESPACE = NamespaceId(b"n" * 16)
SOURCE = UfsSpec("s3://bucket/data")
LIMIT_S = 30.0
encode = msgspec.msgpack.Encoder().encode


def file(ino: int, size: int = 100, etag: str = "e") -> Inode:
    return Inode(ino, Kind.FILE, size, 7, etag, 0, ino * 1000)


def directory(ino: int) -> Inode:
    return Inode(ino, Kind.DIRECTORY)


def run(script: Awaitable[None]) -> None:
    """Runs a test in a loop of its own, no longer than `LIMIT_S`."""

    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await script

    asyncio.run(bounded())


async def until(true: Callable[[], bool]) -> None:
    """Lets other tasks run until something holds."""
    async with asyncio.timeout(LIMIT_S):
        while not true():
            await asyncio.sleep(0)


class FakeMaster:
    """`tree`: (parent, name) -> inode. `held`: types of calls that wait for `free`."""

    url = "http://fake:1"

    def __init__(self) -> None:
        self.tree: dict[tuple[int, bytes], Inode] = {}
        self.root = directory(ROOT_INO)
        self.namespace = NAMESPACE
        self.source = SOURCE
        self.valid_for_s = 60.0
        self.down = False
        self.asked: list[Any] = []
        self.held: set[type] = set()
        self.answering = asyncio.Event()
        self.permitted: Callable[[bytes], bool] = lambda key: True
        self.counters: dict[str, int] = {}
        self.seq = 10
        self.store_run = 1
        self._starts = 0
        self._events: list[m.Invalidate] = []
        self._first_seq = 10
        self._changed = asyncio.Event()

    # ---- what tests do ----

    def put(self, parent: int, name: bytes, inode: Inode) -> None:
        self.tree[parent, name] = inode

    def change(self, parent: int, name: bytes, inode: Inode | None) -> None:
        """As an origin's change that a master noticed."""
        self.tree.pop((parent, name), None)
        if inode is not None:
            self.tree[parent, name] = inode
        self.tell((parent, name))

    def tell(self, *entries: tuple[int, bytes]) -> None:
        self.seq += 1
        self._events.append(m.Invalidate(self.namespace, self.seq, [*entries]))
        self.wake()

    def everything(self) -> None:
        """Says that whatever is known may be wrong."""
        self.seq += 1
        self._events.append(m.Invalidate(self.namespace, self.seq, everything=True))
        self.wake()

    def trim(self) -> None:
        """The stream forgets what it had."""
        self.seq += 1
        self._events.clear()
        self._first_seq = self.seq
        self.wake()

    def start_again(self, store_run: int) -> None:
        """Its store is started again, at the position at which it was."""
        self.store_run = store_run
        self._starts += 1
        self.wake()

    def set_down(self, down: bool) -> None:
        self.down = down
        self.wake()

    def free(self) -> None:
        self.held.clear()
        self.wake()

    def wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def count(self, kind: type) -> int:
        return sum(isinstance(body, kind) for body in self.asked)

    # ---- what a node calls ----

    async def ask(self, body: Any, kind: type, *, answer_s: float = 0, reach_s: float = 0) -> Any:
        self.asked.append(body)
        if self.down:
            raise MasterUnreachable("down")
        answer = await self.answer(body)  # as it is now, whenever it arrives
        while type(body) in self.held and not self.down:
            await self._changed.wait()
        if self.down:
            raise MasterUnreachable("down")
        assert isinstance(answer, kind), f"{type(body).__name__} is answered otherwise"
        return answer

    async def answer(self, body: Any) -> Any:
        match body:
            case c.Greeting():
                return c.Greeted(self.namespace, seq=self.seq, store_run=self.store_run)
            case m.Lookup():
                return m.Found(self.tree.get((body.parent, body.name)), self.valid_for_s)
            case c.Batch():
                return c.Batched([await self._one(call) for call in body.calls])
            case m.GetAttr():
                return m.Found(self._inode(body.ino), self.valid_for_s)
            case m.ListDir():
                return self._page(body)
            case m.Resolve():
                return self._resolve(body.path)
            case c.Locate():
                return c.Located([self._place(ino) for ino in body.inos])
            case c.PermitEviction():
                return c.Permitted([self.permitted(key) for key in body.contents], 10.0)
            case c.ReportChanged():
                return m.Done()
            case c.ListNext():
                self._inode(body.ino)
                return m.Done()
            case c.GetUfs():
                if body.key != SOURCE.key:
                    raise NotFound("no such source")
                return c.UfsFound(self.source)
            case c.GetEvents():
                return await self._poll(body)
        raise AssertionError(f"not scripted: {body}")

    async def _one(self, call: Any) -> Any:
        try:
            return await self.answer(call)
        except CacheFSError as err:
            return m.failure_of(err)

    def _inode(self, ino: int) -> Inode:
        for inode in [self.root, *self.tree.values()]:
            if inode.ino == ino:
                return inode
        raise Stale("gone")

    def _page(self, body: m.ListDir) -> m.Listing:
        names = sorted(name for parent, name in self.tree if parent == body.ino)
        names = [name for name in names if name > body.after]
        entries = [
            m.Dentry(name, msgspec.Raw(encode(self.tree[body.ino, name])))
            for name in names[: body.limit]
        ]
        following = names[body.limit - 1] if len(names) > body.limit else b""
        listing = m.Listing(entries, following, self.valid_for_s)
        return msgspec.msgpack.decode(encode(listing), type=m.Listing)

    def _resolve(self, path: bytes) -> m.Found:
        inode: Inode | None = self.root
        for name in filter(None, path.split(b"/")):
            inode = self.tree.get((inode.ino, name)) if inode is not None else None
        return m.Found(inode, self.valid_for_s)

    def _place(self, ino: int) -> c.Place:
        for (parent, name), inode in self.tree.items():
            if inode.ino == ino and inode.kind is Kind.FILE:
                path = b"dir%d/%s" % (parent, name)
                content = ContentId.of(self.namespace, inode)
                return c.Place(
                    Origin(content, SOURCE.key, path, inode.etag, inode.size, inode.mtime_ns)
                )
        return c.Place(failure=m.failure_of(Stale("gone")))

    async def _poll(self, body: c.GetEvents) -> c.Events:
        if body.namespace != self.namespace:
            raise NotFound("no such namespace here")
        starts = self._starts
        while True:
            if self._starts != starts:
                raise MasterUnreachable("the connection broke")
            if not self._first_seq <= body.after <= self.seq:
                raise PositionGone("trimmed")
            found = [event for event in self._events if event.seq > body.after]
            if found or not body.wait_s or self.down:
                seq = found[-1].seq if found else body.after
                return c.Events(found, seq, self.store_run)
            await self._changed.wait()
