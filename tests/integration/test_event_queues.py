"""Changes that a bucket reports to a queue of SQS: moto's, read by a real master and seen by two
nodes; and by a scripted one, whose messages come twice, are of others, or cannot be read."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cachefs.core.errors import BadConfig, CacheFSError, NoSpace, Unreachable
from cachefs.core.model import UfsSpec
from cachefs.core.ufs import SetUfs, UfsRow
from connectors import registry
from connectors.event_queue import AT_ONCE, QueueMessage
from connectors.registry import open_queue
from master.namespace import Master
from master.push import feeds, queue_feed
from master.push.look_again import LookAgain
from master.push.rounds import MOST_NAMES
from master.state import unchecked
from master.store.transaction import Transaction, transact
from master.tree import Mount
from tests.integration.test_look_again import size_of
from tests.integration.test_master import Clock, run
from tests.integration.test_mount_table import inode_of
from tests.integration.test_reported_names import CountingOrigin
from tests.services.cluster import Cluster
from tests.services.moto_s3 import event_queue, moto_s3, sqs_client
from tests.services.processes import wait_until
from tests.services.s3_server import S3Server

CHANGES = 30
LIMIT_S = 20.0
SEEN_S = 10.0  # 95 of 100 changes, on a busy machine
HOUR_S = 3600.0
QUEUE = "http://127.0.0.1:1/1/events"
X = UfsSpec("s3://x")
Y = UfsSpec("s3://y")


# ---- a scripted queue ----------------------------------------------------------------------------


class Queue:
    """Delivers a message until it is deleted; never hides one. `error` is raised by each call."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.waiting: dict[str, QueueMessage] = {}
        self.error: CacheFSError | None = None
        self.kept_s = 345_600.0
        self.received = 0
        self.closed = False

    def send(self, body: str, ago_s: float = 0.0) -> None:
        handle = str(len(self.waiting) + self.received)
        self.waiting[handle] = QueueMessage(body, handle, self.clock() - ago_s)

    def report(self, *keys: str, bucket: str = "x") -> None:
        records = [{"s3": {"bucket": {"name": bucket}, "object": {"key": key}}} for key in keys]
        self.send(json.dumps({"Records": records}))

    def receive(self, wait_s: int, visible_after_s: int) -> list[QueueMessage]:
        if self.error is not None:
            raise self.error
        found = [*self.waiting.values()][:AT_ONCE]
        self.received += len(found)
        if not found:
            time.sleep(0.002)  # as a request takes
        return found

    def delete(self, handles: Sequence[str]) -> None:
        if self.error is not None:
            raise self.error
        for handle in handles:
            self.waiting.pop(handle, None)

    def retention_s(self) -> float:
        return self.kept_s

    def close(self) -> None:
        self.closed = True


Script = Callable[[Master, Clock, CountingOrigin, Queue], Awaitable[None]]


def play(directory: Path, monkeypatch: pytest.MonkeyPatch, *scripts: Script) -> None:
    """Runs each script with a master of its own, over one store, one origin and one queue."""
    monkeypatch.setattr(queue_feed, "HIDDEN_S", 0)
    monkeypatch.setattr(queue_feed, "WAIT_S", 0)
    monkeypatch.setattr(queue_feed, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(feeds, "RECORD_S", 0.0)

    async def work() -> None:
        clock, origin = Clock(), CountingOrigin({b"d/a": b"1", b"d/b": b"1"})
        queue = Queue(clock)
        monkeypatch.setattr(registry, "open_queue", lambda spec, url: queue)
        for turn, script in enumerate(scripts):
            master = Master.open_empty(directory / "meta", clock)
            try:
                if turn == 0:
                    await master.add_ufs(b"/data", X, origin, 60.0, f"sqs:{QUEUE}")
                for path, _ in master.mounts.recorded():
                    master.mounts.attach(path, origin)
                await master.mounts.check(1.0)
                await script(master, clock, origin, queue)
            finally:
                await master.close()

    run(work())


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.005)


async def current(master: Master, clock: Clock) -> UfsRow:
    """Returns the source's row once its feed is up to date."""
    await until(lambda: master.mounts.rows()[0].feed_current_at >= clock())
    return master.mounts.rows()[0]


async def read_all(master: Master) -> list[int | None]:
    return [await size_of(master, b"/data/d/" + name) for name in (b"a", b"b")]


def test_a_reported_change_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(master: Master, clock: Clock, origin: CountingOrigin, queue: Queue) -> None:
        assert await read_all(master) == [1, 1]
        origin.put(b"d/a", b"longer")
        queue.report("d/a")
        queue.report("d/a")
        await until(lambda: not queue.waiting)
        assert await read_all(master) == [6, 1]
        row = await current(master, clock)
        assert (row.push, row.feed_error) == (f"sqs:{QUEUE}", "")
        assert row.pushed >= 1

    play(tmp_path, monkeypatch, script)


def test_an_hour_of_readers_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(master: Master, clock: Clock, origin: CountingOrigin, queue: Queue) -> None:
        await current(master, clock)
        assert await read_all(master) == [1, 1]
        origin.stats = origin.lists = 0
        for _ in range(58):
            clock.now += 60.0
            await current(master, clock)
            assert await read_all(master) == [1, 1]
        assert origin.stats + origin.lists == 0
        clock.now += 180.0
        await current(master, clock)
        assert await read_all(master) == [1, 1]
        assert origin.stats + origin.lists > 0, "the push interval has ended"

    play(tmp_path, monkeypatch, script)


def test_without_the_queue_names_are_valid_for_the_sync_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[C-broken-feed]"""

    async def script(master: Master, clock: Clock, origin: CountingOrigin, queue: Queue) -> None:
        await current(master, clock)
        assert await read_all(master) == [1, 1]
        queue.error = Unreachable("the queue does not answer")
        await until(lambda: master.mounts.rows()[0].feed_error)
        origin.put(b"d/a", b"longer")
        clock.now += 61.0
        assert await read_all(master) == [6, 1]
        assert "the queue does not answer" in master.mounts.rows()[0].feed_error
        queue.error = None
        assert (await current(master, clock)).feed_error == ""
        origin.stats = origin.lists = 0
        clock.now += 61.0
        await current(master, clock)
        assert await read_all(master) == [6, 1]
        assert origin.stats + origin.lists == 0, "what waited in the queue was not lost"

    play(tmp_path, monkeypatch, script)


def test_messages_of_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(master: Master, clock: Clock, origin: CountingOrigin, queue: Queue) -> None:
        queue.send('{"job": 7}', ago_s=HOUR_S)
        await until(lambda: queue.received > 3)
        assert len(queue.waiting) == 1
        await current(master, clock)
        queue.waiting.clear()
        queue.send(json.dumps({"Event": "s3:TestEvent"}))
        await until(lambda: not queue.waiting)

    play(tmp_path, monkeypatch, script)


def test_a_late_queue_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(master: Master, clock: Clock, origin: CountingOrigin, queue: Queue) -> None:
        await current(master, clock)
        assert await read_all(master) == [1, 1]
        old = Notice(queue, HOUR_S)
        clock.now += 61.0
        old.keep_coming()
        await until(lambda: master.mounts.rows()[0].feed_current_at < clock() - HOUR_S / 2)
        origin.stats = origin.lists = 0
        await read_all(master)
        assert origin.stats + origin.lists > 0

    play(tmp_path, monkeypatch, script)


class Notice:
    """An event of long ago that no deletion ends: the queue always has older messages."""

    def __init__(self, queue: Queue, ago_s: float) -> None:
        self._queue = queue
        self._ago_s = ago_s

    def keep_coming(self) -> None:
        body = json.dumps({"Records": []})
        sent_at = self._queue.clock() - self._ago_s
        self._queue.waiting["old"] = QueueMessage(body, "old", sent_at)
        self._queue.delete = lambda handles: None  # type: ignore[method-assign]


def test_a_restart_trusts_what_the_queue_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def first(master: Master, clock: Clock, origin: CountingOrigin, queue: Queue) -> None:
        await current(master, clock)
        assert await read_all(master) == [1, 1]
        clock.now += 1.0
        await current(master, clock)

    async def second(master: Master, clock: Clock, origin: CountingOrigin, queue: Queue) -> None:
        await until(lambda: not queue.waiting)
        assert await read_all(master) == [6, 1], "the change was made while no master ran"
        await current(master, clock)
        origin.stats = origin.lists = 0
        clock.now += 61.0
        await current(master, clock)
        assert await read_all(master) == [6, 1]
        assert origin.stats + origin.lists == 0

    async def change(master: Master, clock: Clock, origin: CountingOrigin, queue: Queue) -> None:
        await first(master, clock, origin, queue)
        await master.close()
        assert queue.closed
        origin.put(b"d/a", b"longer")
        queue.report("d/a")
        clock.now += 120.0

    play(tmp_path, monkeypatch, change, second)


def test_reports_that_a_lost_store_had_handled_count_as_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is put back to a copy. A node that follows the events shows it."""
    store, copy = tmp_path / "meta", tmp_path / "copy"
    heard: list[tuple[int, int]] = []

    async def first(master: Master, clock: Clock, origin: CountingOrigin, queue: Queue) -> None:
        await current(master, clock)
        assert await read_all(master) == [1, 1]
        clock.now += 1.0
        await current(master, clock)
        await master.close()
        shutil.copytree(store, copy)

    async def lost(master: Master, clock: Clock, origin: CountingOrigin, queue: Queue) -> None:
        origin.put(b"d/a", b"longer")
        queue.report("d/a")
        await until(lambda: not queue.waiting)
        assert await read_all(master) == [6, 1]
        heard.append((master.position, master.run.number))
        await master.close()
        shutil.rmtree(store)
        shutil.copytree(copy, store)

    async def again(master: Master, clock: Clock, origin: CountingOrigin, queue: Queue) -> None:
        clock.now += 61.0
        await current(master, clock)
        master.hear_position(*heard[0])
        await current(master, clock)
        assert await read_all(master) == [6, 1]

    async def later(master: Master, clock: Clock, origin: CountingOrigin, queue: Queue) -> None:
        """The next start finds no record of what was lost."""
        origin.put(b"d/b", b"longer")
        queue.report("d/b")
        clock.now += 61.0
        await current(master, clock)
        assert await read_all(master) == [6, 6]

    play(tmp_path, monkeypatch, first, lost, again, later)


def test_more_unchecked_names_than_are_kept_count_as_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def first(master: Master, clock: Clock, origin: CountingOrigin, queue: Queue) -> None:
        await current(master, clock)
        assert await read_all(master) == [1, 1]
        clock.now += 1.0
        await current(master, clock)
        directory = (await inode_of(master, b"/data/d")).ino
        marks = [(directory, b"a"), (directory, b"b")]
        transact(master.store, lambda txn: txn.mark_unchecked(marks)).result()
        origin.put(b"d/b", b"longer")
        monkeypatch.setattr(unchecked, "MAX_NAMES", 1)

    async def second(master: Master, clock: Clock, origin: CountingOrigin, queue: Queue) -> None:
        clock.now += 61.0
        await current(master, clock)
        assert await read_all(master) == [1, 6]

    play(tmp_path, monkeypatch, first, second)


def test_after_the_retention_everything_is_compared_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master does that by itself, without a reader."""

    async def first(master: Master, clock: Clock, origin: CountingOrigin, queue: Queue) -> None:
        await current(master, clock)
        assert await read_all(master) == [1, 1]
        queue.kept_s = 60.0
        origin.put(b"d/a", b"longer")
        clock.now += 59.0

    async def second(master: Master, clock: Clock, origin: CountingOrigin, queue: Queue) -> None:
        clock.now += 2.0
        position = master.position
        await current(master, clock)
        master.start_probes()
        await until(lambda: master.position > position)
        assert await read_all(master) == [6, 1]
        await until(lambda: master.mounts.rows()[0].background_last_at)

    play(tmp_path, monkeypatch, first, second)


def test_another_feed_is_another_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(master: Master, clock: Clock, origin: CountingOrigin, queue: Queue) -> None:
        await current(master, clock)
        row = await master.mounts.change(SetUfs(b"/data", {}, push=""), lambda _: origin)
        assert (row.push, row.feed_current_at) == ("", 0.0)
        await until(lambda: queue.closed)
        await master.mounts.change(SetUfs(b"/data", {}, push=f"sqs:{QUEUE}2"), lambda _: origin)
        await current(master, clock)
        await master.mounts.remove(b"/data")
        assert not master.mounts.rows()

    play(tmp_path, monkeypatch, script)


def test_a_time_without_a_feed_is_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the queue is the same as before: it had no events in between."""

    async def script(master: Master, clock: Clock, origin: CountingOrigin, queue: Queue) -> None:
        await current(master, clock)
        assert await read_all(master) == [1, 1]
        clock.now += 1.0
        await current(master, clock)
        await master.mounts.change(SetUfs(b"/data", {}, push=""), lambda _: origin)
        origin.put(b"d/a", b"longer")
        clock.now += 61.0
        await master.mounts.change(SetUfs(b"/data", {}, push=f"sqs:{QUEUE}"), lambda _: origin)
        await current(master, clock)
        assert await read_all(master) == [6, 1]

    play(tmp_path, monkeypatch, script)


async def join_late(master: Master, clock: Clock, origin: CountingOrigin, queue: Queue) -> None:
    """Adds a source to the queue after the reader of another source took a report about it, while
    the queue still has an older message."""
    await master.add_ufs(b"/more", Y, origin, 60.0)
    assert await size_of(master, b"/more/d/a") == 1
    clock.now += 1.0
    origin.put(b"d/a", b"longer")
    queue.report("d/a", bucket="y")
    await until(lambda: not queue.waiting)
    Notice(queue, HOUR_S).keep_coming()
    await master.mounts.change(SetUfs(b"/more", {}, push=f"sqs:{QUEUE}"), lambda _: origin)


async def end_backlog(master: Master, clock: Clock, queue: Queue) -> None:
    """Ends the older message once it made the feed of the joined source current."""
    await until(lambda: all(row.feed_current_at for row in master.mounts.rows()))
    queue.waiting.clear()
    clock.now += 61.0
    await until(lambda: all(row.feed_current_at >= clock() for row in master.mounts.rows()))


def test_what_the_queue_reported_before_a_source_joined_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(master: Master, clock: Clock, origin: CountingOrigin, queue: Queue) -> None:
        await current(master, clock)
        await join_late(master, clock, origin, queue)
        await end_backlog(master, clock, queue)
        assert await size_of(master, b"/more/d/a") == 6

    play(tmp_path, monkeypatch, script)


def test_a_restart_before_a_joined_source_is_recorded_trusts_nothing_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def first(master: Master, clock: Clock, origin: CountingOrigin, queue: Queue) -> None:
        await current(master, clock)
        monkeypatch.setattr(feeds, "RECORD_S", 1e18)
        await join_late(master, clock, origin, queue)

    async def second(master: Master, clock: Clock, origin: CountingOrigin, queue: Queue) -> None:
        await end_backlog(master, clock, queue)
        assert await size_of(master, b"/more/d/a") == 6

    play(tmp_path, monkeypatch, first, second)


def test_a_queue_that_cannot_be_opened_is_opened_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "OPEN_AGAIN_S", 0.01)

    async def script(master: Master, clock: Clock, origin: CountingOrigin, queue: Queue) -> None:
        await current(master, clock)
        failures = [BadConfig("no such file")]

        def open_later(spec: UfsSpec, url: str) -> Queue:
            if failures:
                raise failures.pop()
            return queue

        monkeypatch.setattr(registry, "open_queue", open_later)
        call = SetUfs(b"/data", {}, push=f"sqs:{QUEUE}2")
        await master.mounts.change(call, lambda _: origin)
        assert (await current(master, clock)).feed_error == ""
        assert not failures

    play(tmp_path, monkeypatch, script)


def test_a_message_of_many_objects_is_handled_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part holds up the master's loop."""
    count, sizes, names = 2 * MOST_NAMES + 1, list[int](), LookAgain.names

    async def measured(self: LookAgain, mount: Mount, paths: Sequence[bytes]) -> None:
        sizes.append(len(paths))
        await names(self, mount, paths)

    monkeypatch.setattr(LookAgain, "names", measured)

    async def script(master: Master, clock: Clock, origin: CountingOrigin, queue: Queue) -> None:
        queue.report(*(f"unknown/{number}" for number in range(count)))
        await until(lambda: not queue.waiting)
        assert max(sizes) == MOST_NAMES
        assert master.mounts.rows()[0].pushed >= count

    play(tmp_path, monkeypatch, script)


def test_a_full_disk_ends_no_feed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(master: Master, clock: Clock, origin: CountingOrigin, queue: Queue) -> None:
        await current(master, clock)
        assert await read_all(master) == [1, 1]
        write = master._sync.write

        async def refuse(function: Callable[[Transaction], object], *undo: object) -> object:
            if getattr(function, "func", None) is Transaction.put_feed:
                return await write(function)
            raise NoSpace("no room for the names")

        monkeypatch.setattr(master._sync, "write", refuse)
        origin.put(b"d/a", b"longer")
        queue.report("d/a")
        await until(lambda: "no room" in master.mounts.rows()[0].feed_error)
        monkeypatch.setattr(master._sync, "write", write)
        await until(lambda: not queue.waiting)
        assert await read_all(master) == [6, 1]

    play(tmp_path, monkeypatch, script)


# ---- moto's --------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> Iterator[S3Server]:
    with moto_s3(tmp_path / "store") as made:
        made.client().create_bucket(Bucket="bucket")
        yield made


@pytest.fixture
def cluster(tmp_path: Path, server: S3Server) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster", server.credentials()) as made:
        made.start(2)
        yield made


def put(server: S3Server, number: int, body: bytes) -> None:
    server.client().put_object(Bucket="bucket", Key=f"im/{number}", Body=body)


def add(cluster: Cluster, server: S3Server, queue: str) -> list[Path]:
    """Adds the bucket with a sync interval of an hour; returns its mounts on both nodes."""
    options = ("--endpoint-url", server.endpoint_url, "--sync-interval", "1h")
    cluster.add_ufs("s3://bucket/im", "/im", *options, "--push", f"sqs:{queue}")
    return [cluster.mount(number, "/im") for number in range(2)]


def seen(mounts: Sequence[Path], name: str, body: bytes, limit_s: float = LIMIT_S) -> None:
    for mount in mounts:
        path = mount / name
        wait_until(lambda path=path: path.read_bytes() == body, f"{path} is new", limit_s)


def waiting(server: S3Server, queue: str) -> int:
    """Returns how many messages the queue has, received ones too."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    reply: Any = sqs_client(server).get_queue_attributes(QueueUrl=queue, AttributeNames=names)
    return sum(int(value) for value in reply["Attributes"].values())


def test_both_nodes_see_a_change(cluster: Cluster, server: S3Server) -> None:
    queue = event_queue(server, "bucket")
    for number in range(CHANGES):
        put(server, number, b"first")
    mounts = add(cluster, server, queue)
    for mount in mounts:
        assert {path.read_bytes() for path in mount.iterdir()} == {b"first"}
    delays = []
    for number in range(CHANGES):
        body = b"second %d" % number
        put(server, number, body)
        began_s = time.monotonic()
        seen(mounts, str(number), body)
        delays.append(time.monotonic() - began_s)
    slow_s = statistics.quantiles(delays, n=20)[-1]
    print(f"seen by both nodes: median {statistics.median(delays):.3f} s, of 95 % {slow_s:.3f} s")
    assert slow_s < SEEN_S
    server.client().delete_object(Bucket="bucket", Key="im/0")
    for mount in mounts:
        wait_until(lambda mount=mount: not (mount / "0").exists(), "it is gone", LIMIT_S)
    wait_until(lambda: waiting(server, queue) == 0, "handled messages are deleted", LIMIT_S)


def test_a_change_while_the_master_is_dead_is_seen(cluster: Cluster, server: S3Server) -> None:
    """[S-push-queue] The request of the dead master may still receive the message: moto does not
    notice that its client is gone. Then the queue delivers it again."""
    queue = event_queue(server, "bucket")
    put(server, 0, b"first")
    put(server, 1, b"first")
    mounts = add(cluster, server, queue)
    for mount in mounts:
        assert {path.read_bytes() for path in mount.iterdir()} == {b"first"}
    cluster.master.send(signal.SIGKILL)
    cluster.master.kill()
    put(server, 0, b"second")
    cluster.master.start()
    seen(mounts, "0", b"second", queue_feed.HIDDEN_S + LIMIT_S)
    wait_until(lambda: waiting(server, queue) == 0, "handled messages are deleted", LIMIT_S)


def test_what_is_wrong_with_a_queue_is_said(cluster: Cluster, server: S3Server) -> None:
    put(server, 0, b"first")
    missing = f"{server.endpoint_url}/123456789012/missing"
    add(cluster, server, missing)
    at = ("--master", cluster.master.url)

    def said() -> str:
        (row,) = cluster.master.json("ufs", "ls", *at)
        return str(row["feed_error"])

    wait_until(said, "the error of the queue", LIMIT_S)
    assert "no such queue" in said()
    assert "cachefs ufs set --push" in said()
    assert "changes are not reported" in cluster.master.run("ufs", "ls", *at)


def test_errors_of_queues() -> None:
    """Without a server."""
    with pytest.raises(BadConfig, match="no queue has events of file"):
        open_queue(UfsSpec("file:///x"), QUEUE)
    nobody = open_queue(UfsSpec("s3://bucket", {"anonymous": "true"}), QUEUE)
    with pytest.raises(Unreachable, match="cannot be reached"):
        nobody.receive(1, 30)
    nobody.close()


def test_roots_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(master: Master, clock: Clock, origin: CountingOrigin, queue: Queue) -> None:
        queue.report("", "d/", "new")
        await until(lambda: not queue.waiting)
        assert (await inode_of(master, b"/data/d")).ino

    play(tmp_path, monkeypatch, script)
