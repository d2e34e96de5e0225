"""Background syncs of a master: what is seen without an access, what is requested and written,
what is shown, and what ends a walk. The store of the origin is versitygw; memory, where the origin
must fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cachefs.core.errors import BadConfig, Unreachable
from cachefs.core.model import UfsSpec
from cachefs.core.policies import Policy
from connectors.base import Connector
from connectors.compose import open_connector
from connectors.meter import Meter
from master.background import service
from master.background.pace import WalkPace
from master.manual_sync.run import MAX_DOWN
from master.namespace import Master
from master.store.base import Table
from tests.integration.test_master import Clock, names_of, run
from tests.integration.test_mount_table import Origin, inode_of
from tests.integration.test_reported_names import CountingOrigin
from tests.services.s3_server import S3Server
from tests.services.versitygw import ACCESS_KEY, SECRET_KEY, versitygw
from tests.unit.master.sync_rig import content

X, Y = UfsSpec("s3://x"), UfsSpec("s3://y")
HOUR_S = 3600.0
LIMIT_S = 60.0  # for a busy machine
NEVER = -1.0
FILES = {b"a/1": b"1", b"a/2": b"2", b"b/c/3": b"3", b"b/n": b"n", b"x": b"x"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "TICK_S", 0.01)


@asynccontextmanager
async def master_in(directory: Path, clock: Clock, *origins: Connector) -> AsyncIterator[Master]:
    """A master that walks, with the sources that its store records."""
    master = Master.open_empty(directory / "meta", clock)
    try:
        for (path, _), origin in zip(master.mounts.recorded(), origins, strict=False):
            master.mounts.attach(path, origin)
        master.start_probes()
        yield master
    finally:
        for origin in origins:
            if isinstance(origin, Origin):
                origin.script.unblock()
        await master.close()


def status_of(master: Master, source: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = master.status()["sources"][source]
    return found


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.005)


async def walked(master: Master, clock: Clock, walks: int, after_s: float = HOUR_S) -> None:
    """Lets the time pass, and waits until so many walks are complete in all."""
    clock.now += after_s
    await until(lambda: status_of(master)["background_walks"] == walks)
    await until(lambda: not status_of(master)["background_running"])


async def set_rule(master: Master, path: bytes = b"/data", seconds: float = HOUR_S) -> None:
    """Sets a rule, and waits until it counts."""
    await master.set_policy(path, Policy(sync_background_s=seconds), ())
    await until(lambda: master.background._own is master._policies.table.backgrounds)


async def list_all(master: Master) -> None:
    for path in (b"/data", b"/data/a", b"/data/b", b"/data/b/c"):
        await names_of(master, (await inode_of(master, path)).ino)


def names(master: Master) -> dict[Table, list[tuple[bytes, bytes]]]:
    """Everything in the store but the times of walks."""
    found = content(master.store)
    del found[Table.BACKGROUND]
    return found


def count_writes(master: Master, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Returns the list of writes to the store from now on."""
    writes: list[Any] = []
    write = master.store.write

    def counted(function: Any) -> Any:
        writes.append(function)
        return write(function)

    monkeypatch.setattr(master.store, "write", counted)
    return writes


# ---- against versitygw ---------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    with versitygw(tmp_path / "server") as found:
        client = found.client()
        client.create_bucket(Bucket="bucket")
        for key, data in FILES.items():
            client.put_object(Bucket="bucket", Key=key.decode(), Body=data)
        yield found


def test_a_change_at_a_store_is_seen_without_an_access(
    tmp_path: Path, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[S-sync-background] and a walk that finds nothing writes only its own time."""

    async def work() -> None:
        clock, client = Clock(), server.client()
        source = UfsSpec("s3://bucket", {"endpoint_url": server.endpoint_url})
        async with master_in(tmp_path, clock) as master:
            origin = open_connector(source, deadline_s=10.0, meter=Meter())
            await master.add_ufs(b"/data", source, origin, NEVER)
            await list_all(master)
            await set_rule(master)
            await walked(master, clock, 1)
            before, position = names(master), master.position
            writes = count_writes(master, monkeypatch)
            await walked(master, clock, 2)
            await until(lambda: len(writes) > 0)
            assert (names(master), master.position, len(writes)) == (before, position, 1)
            assert status_of(master)["background_changes"] == 0
            listings = master.status()["listings"]

            client.put_object(Bucket="bucket", Key="b/c/3", Body=b"longer")
            client.delete_object(Bucket="bucket", Key="a/2")
            client.put_object(Bucket="bucket", Key="new/4", Body=b"4")
            clock.now += HOUR_S
            await until(lambda: status_of(master)["background_walks"] == 3)
            assert master.position > position, "an event announces it"
            assert status_of(master)["background_changes"] == 3
            assert master.status()["listings"] == listings + 3, "only where something changed"
            stats = master.status()["stats"]
            assert (await inode_of(master, b"/data/b/c/3")).size == 6
            assert (await master.resolve(b"/data/a/2")).inode is None
            assert (await inode_of(master, b"/data/new")).size == 0
            assert master.status()["stats"] == stats, "no access sends a request"

    run(work())


# ---- what is walked ------------------------------------------------------------------------------

Script = Callable[[Master, Clock, CountingOrigin], Awaitable[None]]


def play(directory: Path, *scripts: Script, known: bool = True) -> None:
    """Runs each script with a master of its own, over one store and one origin."""

    async def work() -> None:
        clock, origin = Clock(), CountingOrigin(FILES)
        for turn, script in enumerate(scripts):
            async with master_in(directory, clock, *([origin] if turn else [])) as master:
                if turn == 0:
                    await master.add_ufs(b"/data", X, origin, NEVER)
                    if known:
                        await list_all(master)
                await script(master, clock, origin)

    run(work())


def test_only_directories_of_which_something_is_known_are_listed(tmp_path: Path) -> None:
    async def script(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        await inode_of(master, b"/data/b/n")
        await set_rule(master)
        origin.lists = 0
        await walked(master, clock, 1)
        assert status_of(master)["background_directories"] == 2
        assert origin.lists == 2 * 2, "/ and b, each compared and then read"
        origin.lists = 0
        await walked(master, clock, 2)
        assert origin.lists == 2
        origin.put(b"b/n", b"longer")
        await walked(master, clock, 3)
        assert (await inode_of(master, b"/data/b/n")).size == 6

    play(tmp_path, script, known=False)


def test_a_rule_below_another_has_its_own_walks_and_none_has_none(tmp_path: Path) -> None:
    async def script(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        await set_rule(master, b"/data/b", 10 * HOUR_S)
        await set_rule(master, b"/data/a", 0.0)
        await set_rule(master)
        await walked(master, clock, 2)
        assert status_of(master)["background_directories"] == 1 + 2, "/; b and b/c"
        origin.put(b"a/1", b"longer")
        origin.put(b"b/c/3", b"longer")
        await walked(master, clock, 3)
        assert status_of(master)["background_directories"] == 4, "/ alone"
        assert status_of(master)["background_changes"] == 0
        await walked(master, clock, 5, 10 * HOUR_S)
        assert status_of(master)["background_changes"] == 1
        assert (await inode_of(master, b"/data/b/c/3")).size == 6
        assert (await inode_of(master, b"/data/a/1")).size == 1

    play(tmp_path, script)


def test_a_source_inherits_the_rule_of_a_path_above_it(tmp_path: Path) -> None:
    async def work() -> None:
        clock, x, y = Clock(), Origin(FILES), Origin({b"f": b"1"})
        async with master_in(tmp_path, clock, x, y) as master:
            await master.add_ufs(b"/data", X, x, NEVER)
            await master.add_ufs(b"/data/in", Y, y, NEVER)
            await names_of(master, (await inode_of(master, b"/data")).ino)
            await names_of(master, (await inode_of(master, b"/data/in")).ino)
            await set_rule(master, b"/")
            await walked(master, clock, 1)
            await until(lambda: status_of(master, 1)["background_walks"] == 1)
            assert status_of(master)["background_directories"] == 1
            y.put(b"f", b"longer")
            clock.now += HOUR_S
            await until(lambda: status_of(master, 1)["background_changes"] == 1)

    run(work())


def test_a_directory_that_is_gone_at_the_origin_ends_without_an_error(tmp_path: Path) -> None:
    async def script(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        await set_rule(master, b"/data/b")
        await walked(master, clock, 1)
        origin.delete(b"b")
        await walked(master, clock, 2)
        assert (await master.resolve(b"/data/b")).inode is None
        await walked(master, clock, 3)
        assert status_of(master)["background_errors"] == 0

    play(tmp_path, script)


def test_a_file_has_no_background_syncs(tmp_path: Path) -> None:
    async def script(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        with pytest.raises(BadConfig, match="a sync policy is a directory's"):
            await set_rule(master, b"/data/x")

    play(tmp_path, script)


# ---- restarts, errors, ends ----------------------------------------------------------------------


def test_a_restart_neither_begins_again_nor_forgets(tmp_path: Path) -> None:
    async def before(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        await set_rule(master)
        await walked(master, clock, 1)
        await until(lambda: content(master.store)[Table.BACKGROUND] != [])

    async def after(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        origin.lists = 0
        await until(lambda: status_of(master)["background_last_at"] == clock.now)
        clock.now += HOUR_S / 2
        for _ in range(10):
            master.background.wake()
            await asyncio.sleep(0)
        assert origin.lists == 0
        await walked(master, clock, 1, HOUR_S / 2)
        assert origin.lists == 4

    play(tmp_path, before, after)


def test_an_origin_that_is_down_is_tried_again_ever_later_and_warned_of(tmp_path: Path) -> None:
    async def script(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        await set_rule(master)
        await walked(master, clock, 1)
        origin.fail("list_dir", b"", Unreachable("no route"), times=2)
        clock.now += HOUR_S
        waits = []
        for errors in (1, 2):
            await until(lambda errors=errors: status_of(master)["background_errors"] == errors)
            await until(lambda: not status_of(master)["background_running"])
            found = status_of(master)
            assert "background sync of /data" in found["last_warning"]
            assert "no route" in found["background_error"]
            waits.append(found["background_next_at"] - clock.now)
            clock.now += waits[-1]
        assert 9.0 <= waits[0] <= 10.0 < 18.0 <= waits[1] <= 20.0
        await walked(master, clock, 2, 0.0)
        (row,) = master.mounts.rows()
        assert (row.background_error, row.background_last_at) == ("", clock.now)
        assert clock.now + 0.9 * HOUR_S <= row.background_next_at <= clock.now + HOUR_S

    play(tmp_path, script)


def test_a_walk_ends_when_its_origin_goes_down_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left would wait for its turns, and hold up the walks of other sources."""
    turns = 0

    class CountingPace(WalkPace):
        async def __aenter__(self) -> None:
            nonlocal turns
            turns += 1

    monkeypatch.setattr(service, "WalkPace", CountingPace)

    async def script(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        nonlocal turns
        for n in range(40):
            origin.put(b"d%02d/f" % n, b"x")
        for n in range(40):
            await inode_of(master, b"/data/d%02d/f" % n)
        await set_rule(master)
        await walked(master, clock, 1)
        turns = 0
        for n in range(40):
            origin.fail("list_dir", b"d%02d" % n, Unreachable("no route"))
        clock.now += HOUR_S
        await until(lambda: status_of(master)["background_errors"] > 0)
        assert status_of(master)["background_errors"] == MAX_DOWN
        assert turns < 10, "none for each directory that is left"

    play(tmp_path, script, known=False)


async def blocked_walk(master: Master, clock: Clock, origin: CountingOrigin) -> None:
    """Begins a walk that waits in its first listing."""
    await set_rule(master)
    await walked(master, clock, 1)
    origin.lists = 0
    origin.block("list_dir")
    clock.now += HOUR_S
    await until(lambda: origin.lists == 1)


def test_a_walk_ends_with_its_policy(tmp_path: Path) -> None:
    async def script(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        await blocked_walk(master, clock, origin)
        await master.set_policy(b"/data", Policy(), ("sync_background_s",))
        await until(lambda: status_of(master)["background_next_at"] == 0.0)
        origin.script.unblock()
        await until(lambda: not status_of(master)["background_running"])
        assert origin.lists == 1, "what is below is not listed"
        assert status_of(master)["background_walks"] == 1
        await until(lambda: content(master.store)[Table.BACKGROUND] == [])

    play(tmp_path, script)


def test_a_walk_ends_with_its_source(tmp_path: Path) -> None:
    async def script(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        await blocked_walk(master, clock, origin)
        await master.mounts.remove(b"/data")
        await until(lambda: content(master.store)[Table.BACKGROUND] == [])
        origin.script.unblock()
        await until(lambda: not master.background._walks)
        assert origin.lists == 1

    play(tmp_path, script)


def test_a_walk_that_ends_with_its_source_before_the_plan_knows_leaves_room_for_others(
    tmp_path: Path,
) -> None:
    async def script(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        await blocked_walk(master, clock, origin)
        background = master.background
        assert background._work is not None
        background._work.cancel()  # no tick tells the plan that the source is removed
        await master.mounts.remove(b"/data")
        origin.script.unblock()
        await until(lambda: not background._walks)
        assert not background._plan._running

    play(tmp_path, script)


# ---- requests ------------------------------------------------------------------------------------


def test_a_request_walks_the_whole_source_once(tmp_path: Path) -> None:
    async def script(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        (mount,) = master._tree.mounts()
        await set_rule(master, b"/data/b", 0.0)
        origin.put(b"b/c/3", b"longer")
        origin.lists = 0
        for _ in range(3):
            master.background.request(mount)
        await walked(master, clock, 2, 0.0)
        assert origin.lists == 2 * 4 + 1, "one walk, and one more for the requests during it"
        assert (await inode_of(master, b"/data/b/c/3")).size == 6
        assert status_of(master)["background_next_at"] == 0.0

    play(tmp_path, script)


def test_a_request_that_was_not_met_outlives_a_restart(tmp_path: Path) -> None:
    async def before(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        (mount,) = master._tree.mounts()
        origin.fail("list_dir", b"", Unreachable("no route"))
        master.background.request(mount)
        await until(lambda: status_of(master)["background_errors"] == 1)
        await until(lambda: content(master.store)[Table.BACKGROUND] != [])

    async def after(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        await walked(master, clock, 1, 0.0)
        assert status_of(master)["background_directories"] == 4

    play(tmp_path, before, after)
