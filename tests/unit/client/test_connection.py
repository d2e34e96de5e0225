"""The trio connection: pipelining, cancellation, loss and return, descriptors."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from cachefs.client.blocking import BlockingClient
from cachefs.client.connection import Connection, ConnectionLost
from cachefs.client.lost_descriptors import CAUSE
from cachefs.core import messages as m
from cachefs.core.errors import (
    AccessDenied,
    DeadlineExceeded,
    NoDescriptorLeft,
    ProtocolError,
    Unreachable,
)
from cachefs.core.model import ROOT_INO, UfsSpec
from tests.services.descriptors import no_descriptor_left
from tests.unit.fuse.fake_node import NAMESPACE, FakeNode, assert_no_more_descriptors, descriptors

HELLO = m.Hello(role="fuse", pid=1)
LOOKUP = m.Lookup(NAMESPACE, ROOT_INO, b"a")


@pytest.fixture
def node(tmp_path: Path) -> object:
    with FakeNode() as node:
        node.add_file("a", b"x" * 100, published=False)
        node.listen(tmp_path / "node.sock")
        yield node


def with_connection(
    path: Path, test: Callable[[Connection], Awaitable[None]], **options: object
) -> None:
    """Runs `test` on a connection; afterwards no descriptor is left that was not there before."""

    async def main() -> None:
        with trio.fail_after(20):
            conn = await Connection.connect(str(path), HELLO, **options)  # type: ignore[arg-type]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(conn.run)
                await test(conn)
                nursery.cancel_scope.cancel()

    trio.run(main)


async def again(conn: Connection, body: m.Message) -> None:
    """A call that may be the one by which the loss is noticed."""
    try:
        await conn.call(body)
    except ConnectionLost:
        await conn.call(body)


def test_answers_and_typed_errors(node: FakeNode, tmp_path: Path) -> None:
    def refuse(_: m.Message) -> tuple[m.Message, None]:
        return m.Failure("access-denied", "no", path="a"), None

    node.scripts[m.Open] = refuse

    async def test(conn: Connection) -> None:
        reply, fd = await conn.call(LOOKUP)
        assert isinstance(reply, m.Found)
        assert fd is None
        with pytest.raises(AccessDenied) as caught:
            await conn.call(m.Open(NAMESPACE, 2))
        assert caught.value.path == "a"

    with_connection(tmp_path / "node.sock", test)


def test_a_reply_that_lost_its_descriptor_is_an_error_of_its_call(
    node: FakeNode, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The open is ended at the server, the connection stays, and one line is logged."""
    before = descriptors()

    async def test(conn: Connection) -> None:
        held = await trio.to_thread.run_sync(lambda: os.open(tmp_path, os.O_RDONLY))
        node.scripts[m.Open] = lambda _: (m.Opened(77, 5, False, True), os.dup(held))
        reply, fd = await conn.call(m.Open(NAMESPACE, 2))
        assert isinstance(reply, m.Opened)
        assert fd is not None
        os.close(fd)
        for number in range(2):
            copy = os.dup(held)
            node.scripts[m.Open] = lambda _, fd=copy: (m.Opened(90, 5, False, True), fd)
            with no_descriptor_left(), pytest.raises(NoDescriptorLeft) as caught:
                await conn.call(m.Open(NAMESPACE, 2))
            assert caught.value.errno == errno.EMFILE
            node.wait_asked(m.Release, number + 1)
        assert node.asked(m.Release) == [m.Release(90), m.Release(90)]
        await conn.call(LOOKUP)
        assert conn.epoch == 1
        os.close(held)

    with_connection(tmp_path / "node.sock", test)
    assert sum(CAUSE in record.message for record in caplog.records) == 1
    assert_no_more_descriptors(before)


def test_calls_do_not_wait_for_each_other(node: FakeNode, tmp_path: Path) -> None:
    gate = node.hold(m.GetAttr)

    async def test(conn: Connection) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(conn.call, m.GetAttr(NAMESPACE, ROOT_INO))
            for _ in range(3000):  # more than may be in flight
                nursery.start_soon(conn.call, LOOKUP)
            await trio.to_thread.run_sync(node.wait_asked, m.Lookup, 3000)
            gate.set()

    with_connection(tmp_path / "node.sock", test)


def test_a_cancelled_call_leaves_nothing_behind(node: FakeNode, tmp_path: Path) -> None:
    """Cancel is sent; the late answer's descriptor is closed and its handle released."""
    gate = node.hold(m.Open)
    before = descriptors()

    async def test(conn: Connection) -> None:
        with trio.move_on_after(0.05):
            await conn.call(m.Open(NAMESPACE, 2))
        await trio.to_thread.run_sync(node.wait_asked, m.Cancel)
        gate.set()
        await trio.to_thread.run_sync(node.wait_asked, m.Release)
        assert node.asked(m.Release) == [m.Release(1)]

    with_connection(tmp_path / "node.sock", test)
    assert_no_more_descriptors(before)


def test_a_deadline(node: FakeNode, tmp_path: Path) -> None:
    node.hold(m.Lookup)

    async def test(conn: Connection) -> None:
        with pytest.raises(DeadlineExceeded):
            await conn.call(LOOKUP, deadline_s=0.05)

    with_connection(tmp_path / "node.sock", test)


def test_events_reach_the_callback(node: FakeNode, tmp_path: Path) -> None:
    async def test(conn: Connection) -> None:
        seen: list[m.Message] = []
        arrived = trio.Event()

        def on_event(body: m.Message) -> None:
            seen.append(body)
            arrived.set()

        conn.on_event = on_event
        node.event(m.Detach("bye"))
        await arrived.wait()
        assert seen == [m.Detach("bye")]

    with_connection(tmp_path / "node.sock", test)


def test_loss_and_return(node: FakeNode, tmp_path: Path) -> None:
    """Waiting callers hear of it, later ones wait for the next session, which attaches again."""
    gate = node.hold(m.GetAttr)

    async def test(conn: Connection) -> None:
        returned: list[m.Attached] = []
        conn.on_reconnected = returned.append
        await conn.attach(m.Attach(UfsSpec("s3://b")))
        async with trio.open_nursery() as nursery:

            async def lose() -> None:
                with pytest.raises(ConnectionLost):
                    await conn.call(m.GetAttr(NAMESPACE, ROOT_INO))

            nursery.start_soon(lose)
            await trio.to_thread.run_sync(node.wait_asked, m.GetAttr)
            node.cut()
        await again(conn, LOOKUP)
        assert conn.epoch == 2
        assert len(returned) == 1
        assert len(node.asked(m.Attach)) == len(node.asked(m.Hello)) == 2
        os.fstat(conn.published.dirs[0].fd)
        gate.set()

    with_connection(tmp_path / "node.sock", test)


def test_reports_and_orders_to_uncover_need_no_attach(node: FakeNode, tmp_path: Path) -> None:
    """A server that was started again may have to uncover before it answers Attach."""
    report, order = m.CoverChanged(7, covered=True), m.Uncover(7)

    async def test(conn: Connection) -> None:
        await conn.attach(m.Attach(UfsSpec("s3://b")))
        gate, ordered = node.hold(m.Attach), trio.Event()
        conn.on_greeted = lambda: conn.report(report)
        conn.on_event = lambda event: ordered.set() if event == order else None
        node.cut()
        await trio.to_thread.run_sync(node.wait_asked, m.Attach, 2)
        assert node.asked(m.CoverChanged) == [report]
        node.event(order)
        await ordered.wait()
        assert not conn.is_connected
        gate.set()
        await again(conn, LOOKUP)

    with_connection(tmp_path / "node.sock", test)


def test_directories_of_further_tiers_come_and_go(node: FakeNode, tmp_path: Path) -> None:
    before = descriptors()
    directory = os.open(tmp_path, os.O_RDONLY)

    async def test(conn: Connection) -> None:
        heard: list[m.Message] = []
        conn.on_event = heard.append

        async def tiers(*expected: int) -> None:
            while [known.tier for known in conn.published.dirs] != [*expected]:
                await trio.sleep(0.001)

        await tiers(0)
        node.event(m.PublishedDirectory(2, True), directory)
        await tiers(0, 2)
        known = conn.published.of(2)
        assert known is not None
        assert os.path.samestat(os.fstat(known.fd), os.stat(tmp_path))
        node.event(m.PublishedDirectory(0, False))
        await tiers(2)
        node.event(m.PublishedDirectory(99, True), directory)
        node.event(m.TierState(False, tier=2))
        while not heard:
            await trio.sleep(0.001)
        assert heard == [m.TierState(False, tier=2)]
        node.cut()
        await again(conn, LOOKUP)
        await tiers(0)  # those of the next session

    with_connection(tmp_path / "node.sock", test)
    os.close(directory)
    assert_no_more_descriptors(before)


def test_dialling_again_uses_what_was_injected(node: FakeNode, tmp_path: Path) -> None:
    tries = []

    async def dial() -> socket.socket:
        tries.append(1)
        if len(tries) < 3:
            raise Unreachable("not yet")
        return node.session_socket()

    async def test(conn: Connection) -> None:
        node.cut()
        await again(conn, LOOKUP)
        assert len(tries) == 3

    with_connection(tmp_path / "node.sock", test, reconnect=dial)


def test_a_closed_connection_refuses(node: FakeNode, tmp_path: Path) -> None:
    async def main() -> None:
        conn = await Connection.connect(str(tmp_path / "node.sock"), HELLO)
        conn.close()
        conn.close()
        conn.post(m.Release(1))
        with pytest.raises(Unreachable):
            await conn.call(LOOKUP)

    trio.run(main)


def test_many_posts_to_a_slow_reader_arrive_in_order(node: FakeNode, tmp_path: Path) -> None:
    async def test(conn: Connection) -> None:
        for number in range(20_000):
            conn.post(m.Release(number))
        await trio.to_thread.run_sync(node.wait_asked, m.Release, 20_000)
        assert node.asked(m.Release) == [m.Release(number) for number in range(20_000)]

    with_connection(tmp_path / "node.sock", test)


def test_a_server_that_ends_before_it_accepts(tmp_path: Path) -> None:
    """The kernel resets who was in its backlog: a typed error, as the mount tries again then."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(tmp_path / "node.sock"))
    listener.listen()

    async def end_it(_: object) -> None:
        await trio.testing.wait_all_tasks_blocked()
        listener.close()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end_it, None)
            with pytest.raises(Unreachable):
                await Connection.connect(str(tmp_path / "node.sock"), HELLO)

    trio.run(main)


def test_a_server_that_does_not_greet(tmp_path: Path) -> None:
    with FakeNode() as node:
        node.scripts[m.Hello] = lambda _: (m.Done(), None)
        node.listen(tmp_path / "node.sock")

        async def main() -> None:
            with pytest.raises(ProtocolError):
                await Connection.connect(str(tmp_path / "node.sock"), HELLO)

        trio.run(main)


def test_nobody_listens_and_long_paths(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()

    async def main() -> None:
        with pytest.raises(Unreachable):
            await Connection.connect(str(deep / "node.sock"), HELLO)

    trio.run(main)
    with pytest.raises(Unreachable):
        BlockingClient.connect(deep / "node.sock")


# ---- the blocking client -----------------------------------------------------------------------


def test_blocking_calls(node: FakeNode, tmp_path: Path) -> None:
    before = descriptors()
    with BlockingClient.connect(tmp_path / "node.sock") as client:
        assert client.welcome.published_dir
        reply = client.call(LOOKUP)
        assert isinstance(reply, m.Found)
        node.event(m.Detach("an event between"))
        assert isinstance(client.call(m.Open(NAMESPACE, 2)), m.Opened)
        assert_no_more_descriptors(before)  # they are not for the command line
        node.scripts[m.GetAttr] = lambda _: (m.Failure("access-denied", "no"), None)
        with pytest.raises(AccessDenied):
            client.call(m.GetAttr(NAMESPACE, ROOT_INO))


def test_blocking_deadline_and_the_late_answer(node: FakeNode, tmp_path: Path) -> None:
    gate = node.hold(m.GetAttr)
    with BlockingClient.connect(tmp_path / "node.sock") as client:
        with pytest.raises(DeadlineExceeded):
            client.call(m.GetAttr(NAMESPACE, ROOT_INO), timeout_s=0.05)
        node.wait_asked(m.Cancel)
        gate.set()
        reply = client.call(LOOKUP)
        assert isinstance(reply, m.Found)
        assert reply.inode is not None
        assert reply.inode.ino == 2


def test_blocking_loss(node: FakeNode, tmp_path: Path) -> None:
    node.hold(m.Lookup)
    with BlockingClient.connect(tmp_path / "node.sock") as client:
        cutter = threading.Thread(target=lambda: (node.wait_asked(m.Lookup), node.cut()))
        cutter.start()
        with pytest.raises(Unreachable):
            client.call(LOOKUP)
        cutter.join()
