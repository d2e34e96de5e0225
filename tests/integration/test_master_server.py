"""A master over HTTP: calls, membership, event streams, walks, access, limits, restarts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.errors import (
    AccessDenied,
    BadConfig,
    CacheFSError,
    InUse,
    IsADirectory,
    NotFound,
    PositionGone,
    ProtocolError,
    Stale,
    Unreachable,
)
from cachefs.core.model import ROOT_INO, Inode, NamespaceId, UfsSpec
from cachefs.core.placement import View
from cachefs.core.policies import Policy
from master.server import app, walks
from master.server.app import MasterServer
from master.server.streams import EventPolls
from master.server.walks import Walks
from master.state import numbers
from tests.services.http_master import Cluster, cluster, run, worker
from tests.services.metrics_page import documented, exported

DEADLINE_S = 60.0
TOKENS = """
operators-token-1
reading-everything read-only name=reader
limited-to-team-a path=/team-a name=team-a
"""


async def names_of(it: Cluster, ino: int) -> list[bytes]:
    names: list[bytes] = []
    after = b""
    while True:
        page = await it.ask(m.ListDir(it.namespace, ino, after), m.Listing)
        names += [entry.name for entry in page.entries]
        after = page.next
        if not after:
            return names


# ---- names ---------------------------------------------------------------------------------------


def test_the_names_of_an_added_source_are_answered(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path) as it:
            root = await it.add(b"/imagenet", {b"a/x": b"12345", b"b": b"1"})
            greeted = await it.ask(c.Greeting(), c.Greeted)
            assert greeted.namespace == it.namespace
            assert greeted.store_run == it.master.run.number != 0
            assert greeted.seq == it.master.position
            assert await it.ino(b"/imagenet") == root.ino
            assert await names_of(it, root.ino) == [b"a", b"b"]
            found = await it.ask(m.Lookup(it.namespace, root.ino, b"b"), m.Found)
            assert found.inode is not None
            again = await it.ask(m.GetAttr(it.namespace, found.inode.ino), m.Found)
            assert again.inode == found.inode
            absent = await it.ask(m.Lookup(it.namespace, root.ino, b"no"), m.Found)
            assert absent.inode is None
            table = await it.ask(c.ListUfs(), c.UfsTable)
            assert [row.path.strip(b"/") for row in table.rows] == [b"imagenet"]
            key = table.rows[0].source.key
            assert (await it.ask(c.GetUfs(key), c.UfsFound)).source.url == "s3://bucket/imagenet"

    run(work())


def test_bytes_are_located_in_batches_each_with_its_own_failure(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path) as it:
            root = await it.add(b"/data", {b"f": b"123"})
            file = await it.ino(b"/data/f")
            asked = c.Locate(it.namespace, [file, root.ino, 99999])
            places = (await it.ask(asked, c.Located)).places
            assert places[0].origin is not None
            assert (places[0].origin.path, places[0].origin.size) == (b"f", 3)
            codes = [place.failure.code for place in places[1:] if place.failure is not None]
            assert codes == [IsADirectory.code, Stale.code]
            permitted = await it.ask(
                c.PermitEviction(it.namespace, [places[0].origin.content.key]), c.Permitted
            )
            assert permitted.allowed == [True]
            assert permitted.valid_for_s > 0

    run(work())


def test_a_hint_is_answered_by_what_came_of_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path) as it:
            await it.add(b"/data", {b"a/f": b"1", b"b/f": b"1"})
            origin, file = it.origins["s3://bucket/data"], await it.ino(b"/data/a/f")
            origin.fail("list_dir", b"b", Unreachable("down"))
            with pytest.raises(Unreachable):
                await it.ask(c.ListNext(it.namespace, file), m.Done)
            with pytest.raises(Stale):
                await it.ask(c.ListNext(it.namespace, 99999), m.Done)

    run(work())


def test_a_batch_of_lookups_is_answered_in_order(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path) as it:
            root = await it.add(b"/data", {b"n%03d" % n: b"x" * n for n in range(300)})
            names = [b"n%03d" % n for n in range(300)] + [b"absent"]
            lookups: list[m.Lookup | m.GetAttr] = [
                m.Lookup(it.namespace, root.ino, name) for name in names
            ]
            asked = c.Batch([*lookups, m.GetAttr(it.namespace, 99999)])
            for _ in range(2):  # from the origin, then from the store
                answers = (await it.ask(asked, c.Batched)).answers
                sizes = [a.inode.size for a in answers if isinstance(a, m.Found) and a.inode]
                assert sizes == list(range(300))
                assert isinstance(answers[300], m.Found)
                assert isinstance(answers[301], m.Failure)
                assert answers[301].code == Stale.code

    run(work())


def test_another_namespace_is_not_found(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path) as it:
            other = NamespaceId(b"o" * 16)
            for call in (
                m.Lookup(other, 1, b"x"),
                m.GetAttr(other, 1),
                m.ListDir(other, 1),
                m.Resolve(other, b"/"),
                c.Locate(other, [1]),
                c.Walk(other, 1),
                c.GetEvents(other, 0),
                c.ReportChanged(other, 1),
                c.ListNext(other, 1),
                c.PermitEviction(other, []),
            ):
                with pytest.raises(NotFound, match="another namespace"):
                    await it.ask(call, m.Message)

    run(work())


# ---- walks ---------------------------------------------------------------------------------------


async def walked(it: Cluster, ino: int, *, known: bool = False) -> list[bytes]:
    paths: list[bytes] = []
    cursor = b""
    while True:
        answer = await it.ask(c.Walk(it.namespace, ino, known, cursor), c.Walked)
        if cursor:  # an answer that was lost is given again
            again = await it.ask(c.Walk(it.namespace, ino, known, cursor), c.Walked)
            assert again == answer
        paths += [path for path, _ in answer.files]
        cursor = answer.cursor
        if not cursor:
            return paths


def test_a_walk_comes_in_batches_and_each_can_be_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walks, "FILES_AT_ONCE", 7)

    async def work() -> None:
        async with cluster(tmp_path) as it:
            keys = {b"d%02d/f%02d" % (d, f): b"" for d in range(10) for f in range(10)}
            root = await it.add(b"/data", keys)
            assert await walked(it, root.ino) == [b"data/" + key for key in sorted(keys)]
            assert await walked(it, root.ino, known=True) == [
                b"data/" + key for key in sorted(keys)
            ]
            with pytest.raises(Stale):
                await it.ask(c.Walk(it.namespace, 99999), c.Walked)
            for cursor in (b"x", b"y" * 24):
                with pytest.raises(PositionGone):
                    await it.ask(c.Walk(it.namespace, root.ino, cursor=cursor), c.Walked)

    run(work())


async def endless() -> AsyncIterator[list[tuple[bytes, Inode]]]:
    while True:
        await asyncio.sleep(0)
        yield [(b"f", msgspec.msgpack.decode(b"\x92\x02\x01", type=Inode))] * 100


def test_a_walk_that_nobody_goes_on_with_ends() -> None:
    async def work() -> None:
        now = 0.0
        table = Walks(lambda: now)
        first = await table.begin(1, endless())
        second = await table.begin(1, endless())
        now += walks.IDLE_S / 2
        await table.go_on(1, second.cursor)
        now += walks.IDLE_S / 2
        table.end_idle()
        assert len(table) == 1
        with pytest.raises(PositionGone):
            await table.go_on(1, first.cursor)
        with pytest.raises(PositionGone):
            await table.go_on(2, second.cursor)  # of another directory
        await table.close()
        assert len(table) == 0

    run(work())


async def breaks_off() -> AsyncIterator[list[tuple[bytes, Inode]]]:
    yield [(b"f", msgspec.msgpack.decode(b"\x92\x02\x01", type=Inode))]
    raise Unreachable("the origin is down")


def test_a_walk_gives_the_files_before_its_failure_and_then_the_failure() -> None:
    async def work() -> None:
        table = Walks()
        first = await table.begin(1, breaks_off())
        assert len(first.files) == 1
        for _ in range(2):
            with pytest.raises(Unreachable):
                await table.go_on(1, first.cursor)
        await table.close()

    run(work())


# ---- events --------------------------------------------------------------------------------------


def test_a_long_poll_hears_of_a_change_and_positions_go_on(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path) as it:
            root = await it.add(b"/data", {b"f": b"1"})
            ino = await it.ino(b"/data/f")
            seq = (await it.ask(c.Greeting(), c.Greeted)).seq
            nothing = await it.ask(c.GetEvents(it.namespace, seq, 0.0), c.Events)
            assert nothing == c.Events([], seq, it.master.run.number)
            assert (await it.ask(c.GetEvents(it.namespace, -1, 0.0), c.Events)).seq == seq
            polls = [
                asyncio.create_task(it.ask(c.GetEvents(it.namespace, seq, 20.0), c.Events))
                for _ in range(5)
            ]
            while it.server.polls < 5:
                await asyncio.sleep(0.005)
            await it.ask(c.ReportChanged(it.namespace, ino), m.Done)
            heard = await asyncio.gather(*polls)
            assert heard[0].events[0].entries == [(root.ino, b"f")]
            assert heard[0].seq == seq + 1
            assert all(other == heard[0] for other in heard)
            again = await it.ask(c.GetEvents(it.namespace, seq, 20.0), c.Events)
            assert again == heard[0]
            with pytest.raises(PositionGone):
                await it.ask(c.GetEvents(it.namespace, seq + 1000, 1.0), c.Events)

    run(work())


class Burst:
    """A stream that has some events, then waits."""

    def __init__(self, count: int) -> None:
        self.position = count
        self.ended = 0

    async def events(self, after: int) -> AsyncIterator[m.Invalidate]:
        try:
            for seq in range(after + 1, self.position + 1):
                yield m.Invalidate(NamespaceId(b"n" * 16), seq)
            await asyncio.Event().wait()
        finally:
            self.ended += 1


def test_events_that_are_there_come_in_one_answer_and_readers_end_with_their_pollers() -> None:
    async def work() -> None:
        burst = Burst(50)
        polls = EventPolls(burst)
        got = await polls.poll(10, 5.0)
        assert [event.seq for event in got.events] == list(range(11, 51))
        assert got.seq == 50
        assert await polls.poll(50, 0.01) == c.Events([], 50)
        assert polls.waiting == 0
        poll = asyncio.ensure_future(polls.poll(50, 5.0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert polls.waiting == 1
        await polls.close()
        with pytest.raises(CacheFSError, match="ending"):
            await poll

    run(work())


# ---- membership ----------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["heartbeat", "registration"])
def test_a_worker_that_knows_a_later_store_makes_another_run_of_this_one(
    tmp_path: Path, by: str
) -> None:
    """A machine that was set back with its memory: the master's process goes on in its past."""

    async def work() -> None:
        async with cluster(tmp_path) as it:
            root = await it.add(b"/data", {b"f": b"1"})
            await it.ask(worker("a"), c.Registered)
            before = await it.ask(c.Greeting(), c.Greeted)
            poll = asyncio.create_task(
                it.ask(c.GetEvents(it.namespace, before.seq, 20.0), c.Events)
            )
            while not it.server.polls:
                await asyncio.sleep(0.005)
            if by == "heartbeat":
                beaten = await it.ask(c.Heartbeat("a", 40), c.Beaten)
                assert beaten.view is not None
                view = beaten.view
            else:
                known = msgspec.structs.replace(worker("b", 20001), epoch=40)
                view = (await it.ask(known, c.Registered)).view
            assert view.epoch > 40
            heard = await poll
            after = await it.ask(c.Greeting(), c.Greeted)
            assert after.store_run == heard.store_run != before.store_run
            assert await it.ino(b"/data/f") > root.ino + numbers.SKIPPED

    run(work())


def test_a_worker_registers_beats_is_drained_and_leaves(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path) as it:
            registered = await it.ask(worker("a"), c.Registered)
            assert registered.namespace == it.namespace
            assert registered.store_run == it.master.run.number
            assert [member.id for member in registered.view.members] == ["a"]
            await it.ask(worker("b", 20001), c.Registered)
            view = (await it.ask(c.GetView(), c.ViewReply)).view
            assert (view.epoch, len(view.members)) == (2, 2)
            beaten = await it.ask(c.Heartbeat("a", 1), c.Beaten)
            assert beaten.view == view
            assert not (await it.ask(c.Heartbeat("zz", 1), c.Beaten)).known
            waits = asyncio.create_task(it.ask(c.GetView(view.epoch, 20.0), c.ViewReply))
            await it.ask(c.Drain("127.0.0.1:20001"), m.Done)
            assert (await waits).view.epoch == 3
            table = await it.ask(c.ListWorkers(), c.WorkerTable)
            assert [(row.id, row.state) for row in table.rows] == [
                ("a", "serving"),
                ("b", "draining"),
            ]
            with pytest.raises(InUse):
                await it.ask(c.RemoveWorker("a"), m.Done)
            await it.ask(c.Leave("a"), m.Done)
            assert (await it.ask(c.GetView(), c.ViewReply)).view.members == ()

    run(work())


def test_a_restarted_master_knows_its_members_epoch_and_sources(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path) as it:
            await it.add(b"/data", {b"f": b"1"})
            ino = await it.ino(b"/data/f")
            await it.ask(worker("a"), c.Registered)
            await it.ask(worker("b", 20001), c.Registered)
            before = (await it.ask(c.GetView(), c.ViewReply)).view
            await it.restart()
            assert (await it.ask(c.GetView(), c.ViewReply)).view == before
            beaten = await it.ask(c.Heartbeat("a", before.epoch, version=before.version), c.Beaten)
            assert (beaten.known, beaten.view) == (True, None)
            assert await it.ino(b"/data/f") == ino

    run(work())


def test_a_view_is_shown_only_when_it_is_durable(tmp_path: Path) -> None:
    """A store whose writer is busy holds the answer back; the old view is shown meanwhile."""

    async def work() -> None:
        async with cluster(tmp_path) as it:
            gate = asyncio.Event()
            loop = asyncio.get_running_loop()

            def blocked(_: object) -> None:
                asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(DEADLINE_S)

            busy = it.master.store.write(blocked)
            joining = asyncio.create_task(it.ask(worker("a"), c.Registered))
            while not it.server.members.rows():
                await asyncio.sleep(0.005)
            assert (await it.ask(c.GetView(), c.ViewReply)).view.epoch == 0
            assert not joining.done()
            gate.set()
            assert (await joining).view.epoch == 1
            assert (await it.ask(c.GetView(), c.ViewReply)).view.epoch == 1
            await asyncio.wrap_future(busy)

    run(work())


def test_silent_workers_are_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The master's clock goes on by half a second with each beat of one of them."""
    monkeypatch.setattr("master.server.members.TICK_S", 0.01)
    now_s = 1000.0

    async def work() -> None:
        nonlocal now_s
        async with cluster(tmp_path, clock=lambda: now_s, lost_after_s=5.0) as it:
            registered = await it.ask(worker("a"), c.Registered)
            assert registered.heartbeat_s == 1.0, "five of them in the time"
            await it.ask(worker("b", 20001), c.Registered)
            view = View(0)
            while view.epoch < 3:
                now_s += 0.5
                await it.ask(c.Heartbeat("a", 2), c.Beaten)
                view = (await it.ask(c.GetView(2, 0.01), c.ViewReply)).view
            assert [member.id for member in view.members] == ["a"]

    run(work())


# ---- access and limits ---------------------------------------------------------------------------


def test_beyond_loopback_a_token_is_needed(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path) as it:
            with pytest.raises(BadConfig, match="token"):
                MasterServer(it.master, listen=("", 0), open_connector=it.open_connector)

    run(work())


def test_every_page_but_healthz_asks_for_a_token(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, TOKENS) as it:
            for token in ("", "wrong-wrong-wrong-wrong"):
                with pytest.raises(AccessDenied):
                    await it.ask(c.Greeting(), c.Greeted, token)
                assert (await it.page("/metrics", token))[0] == 403
            assert await it.page("/healthz") == (200, "ok\n")
            assert (await it.page("/metrics", "operators-token-1"))[0] == 200
            assert (await it.page("/other"))[0] == 404

    run(work())


def test_a_token_for_reading_changes_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, TOKENS) as it:
            await it.add(b"/data", {b"f": b"1"}, "operators-token-1")
            it.token = "reading-everything"  # noqa: S105
            await it.ino(b"/data/f")
            for call in (
                c.AddUfs(b"/x", UfsSpec("s3://bucket/x")),
                c.RemoveUfs(b"/data"),
                c.Drain("a"),
                c.RemoveWorker("a"),
                worker("a"),
            ):
                with pytest.raises(AccessDenied):
                    await it.ask(call, m.Message)

    run(work())


def test_a_token_with_a_path_sees_nothing_else(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, TOKENS) as it:
            it.token = "operators-token-1"  # noqa: S105
            await it.add(b"/team-a", {b"f": b"1"})
            other = await it.add(b"/team-b", {b"secret": b"1"})
            ours, secret = await it.ino(b"/team-a/f"), await it.ino(b"/team-b/secret")
            sources = (await it.ask(c.ListUfs(), c.UfsTable)).rows
            seq = (await it.ask(c.Greeting(), c.Greeted)).seq
            for ino in (ours, secret):
                await it.ask(c.ReportChanged(it.namespace, ino), m.Done)

            it.token = "limited-to-team-a"  # noqa: S105
            root = await it.ino(b"/team-a")
            assert (await it.ask(m.ListDir(it.namespace, root), m.Listing)).entries
            assert (await it.ask(c.Locate(it.namespace, [ours]), c.Located)).places[0].origin
            events = await it.ask(c.GetEvents(it.namespace, seq), c.Events)
            assert [entry for event in events.events for entry in event.entries] == [(root, b"f")]
            assert events.seq == seq + 2
            by_path = {row.path.strip(b"/"): row.source.key for row in sources}
            await it.ask(c.GetUfs(by_path[b"team-a"]), c.UfsFound)
            for call in (
                m.Resolve(it.namespace, b"/team-b/secret"),
                m.Lookup(it.namespace, other.ino, b"secret"),
                m.Lookup(it.namespace, ROOT_INO, b"team-b"),
                m.GetAttr(it.namespace, secret),
                m.ListDir(it.namespace, other.ino),
                m.ListDir(it.namespace, ROOT_INO),
                c.Locate(it.namespace, [ours, secret]),
                c.Batch([m.GetAttr(it.namespace, secret)]),
                c.Walk(it.namespace, other.ino),
                c.ReportChanged(it.namespace, secret),
                c.ListNext(it.namespace, secret),
                c.GetUfs(by_path[b"team-b"]),
                c.ListUfs(),
                c.MasterStatus(),
            ):
                with pytest.raises(AccessDenied):
                    await it.ask(call, m.Message)

    run(work())


def test_a_hint_lists_nothing_that_its_giver_may_not_list(tmp_path: Path) -> None:
    """Not the directory above the token's path, and nothing beside it."""

    async def work() -> None:
        async with cluster(tmp_path, TOKENS) as it:
            it.token = "operators-token-1"  # noqa: S105
            files = {b"d/f": b"1", b"e/f": b"1", b"g": b"1"}
            await it.add(b"/team-a", files)
            await it.add(b"/team-b", {b"secret": b"1"})
            ours, theirs = it.origins["s3://bucket/team-a"], it.origins["s3://bucket/team-b"]
            inside, beside = await it.ino(b"/team-a/d/f"), await it.ino(b"/team-a/g")
            root = await it.ino(b"/team-a")

            it.token = "limited-to-team-a"  # noqa: S105
            for ino in (beside, root):
                await it.ask(c.ListNext(it.namespace, ino), m.Done)
            assert theirs.calls["list_dir"] == ours.calls["list_dir"] == 0
            with pytest.raises(Stale):
                await it.ask(c.ListNext(it.namespace, 99999), m.Done)
            await it.ask(c.ListNext(it.namespace, inside), m.Done)
            assert ours.script.calls_by_path["list_dir", b"e"] == 1
            assert theirs.calls["list_dir"] == 0

            it.token = "reading-everything"  # noqa: S105
            await it.ask(c.ListNext(it.namespace, beside), m.Done)
            assert theirs.calls["list_dir"] == 1

    run(work())


def test_what_is_no_call_is_refused_and_the_connection_goes_on(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path) as it:
            for data in (b"", b"nonsense", c.encode(m.Done()), b"x" * (c.MAX_CALL_BYTES + 1)):
                status, answer = await it.post(data)
                assert isinstance(answer, m.Failure), data[:10]
                assert (status, answer.code) == (400, ProtocolError.code)
            with pytest.raises(ProtocolError, match="no call of a master"):
                await it.ask(c.Have([]), m.Message)
            with pytest.raises(ProtocolError, match="at most 1000"):
                await it.ask(c.Locate(it.namespace, [1] * 1001), m.Message)
            with pytest.raises(ProtocolError):
                await it.ask(c.PermitEviction(it.namespace, [b"short"]), m.Message)
            with pytest.raises(ProtocolError):
                await it.ask(c.Greeting(protocol=9), m.Message)
            with pytest.raises(NotFound):
                await it.ask(c.RemoveUfs(b"/nowhere"), m.Message)
            with pytest.raises(BadConfig):
                await it.ask(c.AddUfs(b"/x", UfsSpec("s3://unknown")), m.Message)
            await it.ask(c.Greeting(), c.Greeted)

    run(work())


def test_more_calls_than_the_limit_are_refused_with_429(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "MAX_IN_FLIGHT", 1)

    async def work() -> None:
        async with cluster(tmp_path) as it:
            root = await it.add(b"/data", {b"f": b"1", b"g": b"1"})
            origin = it.origins["s3://bucket/data"]
            origin.block("stat")
            waits = asyncio.create_task(it.ask(m.Lookup(it.namespace, root.ino, b"f"), m.Found))
            while not it.server.in_flight:
                await asyncio.sleep(0.005)
            status, answer = await it.post(c.encode(m.Lookup(it.namespace, root.ino, b"g")))
            assert isinstance(answer, m.Failure)
            assert (status, answer.code) == (429, "throttled")
            await it.ask(c.Greeting(), c.Greeted)  # answered at once: never refused
            origin.unblock()
            assert (await waits).inode is not None

    run(work())


def test_an_address_in_use_is_a_clear_error(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path) as it:
            first = MasterServer(
                it.master, listen=("127.0.0.1", 0), open_connector=it.open_connector
            )
            taken = await first.start()
            second = MasterServer(
                it.master, listen=("127.0.0.1", taken), open_connector=it.open_connector
            )
            line = (
                rf"^cannot listen on 127\.0\.0\.1:{taken}: Address already in use\nend the process "
            )
            with pytest.raises(BadConfig, match=line):
                await second.start()
            await first.stop()

    run(work())


def test_stopping_answers_those_who_wait(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path) as it:
            seq = it.master.position
            poll = asyncio.create_task(it.ask(c.GetEvents(it.namespace, seq, 20.0), c.Events))
            view = asyncio.create_task(it.ask(c.GetView(5, 20.0), c.ViewReply))
            while it.server.polls < 2:
                await asyncio.sleep(0.005)
            began = time.monotonic()
            await it.server.stop()
            await asyncio.gather(poll, view, return_exceptions=True)
            assert time.monotonic() - began < 15.0

    run(work())


# ---- metrics and status --------------------------------------------------------------------------


FACTS: dict[str, object] = {  # of a heartbeat
    "certificate": {"path": "/tls.crt", "expires_at_s": 1000.0},
    "quota_used_bytes": {"/data": 990},
}


def test_status_and_metrics_tell_what_the_master_does(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path) as it:
            await it.add(b"/data", {b"f": b"1"})
            await it.ask(worker("a"), c.Registered)
            with pytest.raises(Stale):
                await it.ask(m.GetAttr(it.namespace, 99999), m.Found)
            await it.ask(c.Heartbeat("a", 1, facts=FACTS), c.Beaten)
            quota = Policy(quota_bytes=1000)
            await it.ask(m.SetPolicy(it.namespace, b"/data", quota, []), m.PolicySet)
            it.master.background.start()
            it.master.background.request(it.master._tree.mounts()[0])
            while not it.master.status()["sources"][0]["background_last_at"]:
                await asyncio.sleep(0.005)
            status = (await it.ask(c.MasterStatus(), c.MasterStatusReply)).status
            assert (status["epoch"], status["members"]) == (1, 1)
            assert status["workers"]["serving"] == 1
            assert status["sources"][0]["path"] == "/data"
            page = (await it.page("/metrics"))[1]
            assert exported(page, "cachefs_") == documented("cachefs_master_")
            lines = page.splitlines()
            for line in (
                'cachefs_master_calls_total{call="Register"} 1.0',
                'cachefs_master_failures_total{code="stale"} 1.0',
                'cachefs_master_workers{state="serving"} 1.0',
                "cachefs_master_epoch 1.0",
                'cachefs_master_origin_down{path="/data"} 0.0',
                'cachefs_master_problems{code="CERTIFICATE_EXPIRES"} 1.0',
                'cachefs_master_problems{code="QUOTA_FULL"} 1.0',
                'cachefs_master_problems{code="WORKER_LOST"} 0.0',
                'cachefs_master_certificate_expiry_timestamp_seconds{server="worker a"} 1000.0',
                'cachefs_master_quota_bytes{path="/data"} 1000.0',
                'cachefs_master_quota_used_bytes{path="/data"} 990.0',
            ):
                assert line in lines

    run(work())
