"""A client's side of the control socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence

import msgspec
import pytest
import trio
import trio.testing

from cachefs.core.errors import Unreachable
from cachefs.core.model import UfsSpec
from cachefs.core.specs import ClientSpec, Held, SupervisorSpec
from cachefs.fuse.kernel.negotiation import Negotiated
from cachefs.fuse.kernel.table import TakeoverTable
from cachefs.fuse.supervisor import link as module
from cachefs.fuse.supervisor import wire as w
from cachefs.fuse.supervisor.link import SupervisorLink

VALUES = Negotiated(41, 1, 4096, 1, True, True)
LIMIT_S = 20.0


class Supervisors:
    """The other end; `started` are those that the link started, by their ends of new sockets."""

    def __init__(self, *, held: bool = False) -> None:
        self.sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(LIMIT_S)
        self.fuse_fd = os.eventfd(0)
        spec = ClientSpec(home="", socket="", source=UfsSpec("s3://b"), mountpoint="/m")
        if held:  # the link owns what it inherited
            table = TakeoverTable.create()
            fds = os.dup(self.fuse_fd), os.dup(table.fd)
            table.close()
            spec = msgspec.structs.replace(spec, held=Held(*fds, w.encode_negotiated(VALUES)))
        self.link = SupervisorLink(msgspec.structs.replace(spec, control_fd=theirs.detach()))
        self.started: list[SupervisorSpec] = []

    def start(self, spec: SupervisorSpec, fds: Sequence[int]) -> int:
        assert spec.adopt is not None
        assert tuple(fds) == (spec.adopt.control_fd, spec.adopt.fuse_fd, spec.adopt.table_fd)
        self.sock.close()
        self.sock = socket.socket(fileno=os.dup(spec.adopt.control_fd))
        self.sock.settimeout(LIMIT_S)
        self.started.append(spec)
        return 1000 + len(self.started)

    def tell_to_serve(self, *, takeover: bool) -> None:
        table = TakeoverTable.create()
        w.send(self.sock, w.Serve(VALUES, takeover), (self.fuse_fd, table.fd))

    def hears(self) -> w.AnyControlMessage | None:
        return w.receive(self.sock)[0]

    def close(self) -> None:
        self.sock.close()
        self.link.close()
        os.close(self.fuse_fd)


@pytest.fixture
def supervisors(monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisors]:
    made = Supervisors()
    monkeypatch.setattr(module, "start_supervisor", made.start)
    yield made
    made.close()


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisors]:
    """The link of a successor that has the descriptors from its start."""
    made = Supervisors(held=True)
    monkeypatch.setattr(module, "start_supervisor", made.start)
    yield made
    made.close()


def run(act: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        with trio.fail_after(LIMIT_S):
            await act()

    trio.run(main)


def test_it_is_told_to_serve(supervisors: Supervisors) -> None:
    link = supervisors.link

    async def act() -> None:
        link.say(w.Ready("a warning"))
        assert supervisors.hears() == w.Ready("a warning")
        supervisors.tell_to_serve(takeover=True)
        await link.take()
        assert link.takeover
        assert link.negotiated == VALUES
        assert os.path.samestat(os.fstat(link.fuse_fd), os.fstat(supervisors.fuse_fd))

    run(act)


def test_a_supervisor_that_ends_first(supervisors: Supervisors) -> None:
    async def act() -> None:
        supervisors.sock.close()
        with pytest.raises(Unreachable):
            await supervisors.link.take()

    run(act)


def test_a_successor_replaces_its_supervisor_before_it_serves(guarded: Supervisors) -> None:
    """While it starts, and while it waits to be told: each time it says again that it is ready."""
    link = guarded.link
    seen: list[int] = []
    link.on_supervisor = lambda: seen.append(link.supervisor)

    async def act() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.guard)
            guarded.sock.close()
            while not guarded.started:
                await trio.testing.wait_all_tasks_blocked(0.01)
            link.say(w.Ready("late"))
            nursery.start_soon(link.take)
            while len(guarded.started) < 2:
                assert await trio.to_thread.run_sync(guarded.hears) == w.Ready("late")
                guarded.sock.close()
                while len(guarded.started) < 2:
                    await trio.testing.wait_all_tasks_blocked(0.01)
            assert await trio.to_thread.run_sync(guarded.hears) == w.Ready("late")
            guarded.tell_to_serve(takeover=True)
        assert link.takeover
        assert os.path.samestat(os.fstat(link.fuse_fd), os.fstat(guarded.fuse_fd))

    run(act)
    assert seen == [1001, 1002]
    for spec in guarded.started:
        assert spec.adopt is not None
        assert not spec.adopt.serving
        assert spec.client.held is None


def test_an_order_is_not_lost_with_its_supervisor(guarded: Supervisors) -> None:
    """One that told the client to serve and died: it serves, and starts another then."""

    async def act() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(guarded.link.guard)
            await trio.testing.wait_all_tasks_blocked()
            guarded.tell_to_serve(takeover=True)
            guarded.sock.close()
            await guarded.link.take()
        assert guarded.started == []

    run(act)


def test_telling_nobody_is_no_error(supervisors: Supervisors) -> None:
    supervisors.sock.close()
    supervisors.link.say(w.Beat())


async def _served(supervisors: Supervisors) -> None:
    supervisors.tell_to_serve(takeover=False)
    await supervisors.link.take()


def test_it_beats_and_obeys(supervisors: Supervisors) -> None:
    async def act() -> None:
        await _served(supervisors)
        retired = trio.Event()
        supervisors.link.on_retire = retired.set
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisors.link.run)
            assert await trio.to_thread.run_sync(supervisors.hears) == w.Beat()
            supervisors.sock.send(b"\xc1 of a version that knows more")
            w.send(supervisors.sock, w.Retire())
            await retired.wait()
            nursery.cancel_scope.cancel()
        assert supervisors.started == []

    run(act)


def test_a_lost_supervisor_is_followed_again_and_again(supervisors: Supervisors) -> None:
    """Each is handed what it needs to start a successor, and its orders are heard."""
    seen: list[int] = []
    link = supervisors.link

    async def act() -> None:
        await _served(supervisors)
        changed, retired = trio.Event(), trio.Event()
        link.on_retire = retired.set

        def on_supervisor() -> None:
            nonlocal changed
            seen.append(link.supervisor)
            changed.set()
            changed = trio.Event()

        link.on_supervisor = on_supervisor
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            for _ in range(2):
                waiting = changed
                supervisors.sock.close()
                await waiting.wait()
            while await trio.to_thread.run_sync(supervisors.hears) != w.Beat():
                pass
            w.send(supervisors.sock, w.Retire())
            await retired.wait()
            nursery.cancel_scope.cancel()

    run(act)
    assert seen == [1001, 1002]
    for spec in supervisors.started:
        assert spec.client.control_fd == -1
        assert spec.adopt is not None
        assert spec.adopt.pid == os.getpid()
        assert w.decode_negotiated(spec.adopt.negotiated) == VALUES


def test_one_that_cannot_be_started_is_tried_again(
    supervisors: Supervisors, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = []

    def start(spec: SupervisorSpec, fds: Sequence[int]) -> int:
        attempts.append(spec)
        if len(attempts) == 1:
            raise BlockingIOError(11, "no more processes")
        return supervisors.start(spec, fds)

    monkeypatch.setattr(module, "start_supervisor", start)

    async def act() -> None:
        await _served(supervisors)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisors.link.run)
            supervisors.sock.close()
            while not supervisors.started:
                await trio.testing.wait_all_tasks_blocked(0.01)
            nursery.cancel_scope.cancel()

    run(act)
    assert supervisors.link.supervisor == 1001
