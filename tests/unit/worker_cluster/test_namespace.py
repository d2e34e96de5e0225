"""A node's namespace over a master that tests change, hold back and cut off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.errors import NotFound, Stale, Unreachable
from cachefs.core.model import ROOT_INO, ContentId
from tests.unit.worker_cluster.fake_master import (
    NAMESPACE,
    SOURCE,
    FakeMaster,
    directory,
    encode,
    file,
    run,
    until,
)
from worker.names.namespace import DEGRADED_VALID_S, RemoteNamespace


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def opened(master: FakeMaster, clock: Clock | None = None) -> AsyncIterator[RemoteNamespace]:
    namespace = await RemoteNamespace.open(master, clock=clock or Clock())
    try:
        await until(lambda: master.count(c.GetEvents) > 0)
        yield namespace
    finally:
        await namespace.close()


Script = Callable[[RemoteNamespace, FakeMaster, Clock], Awaitable[None]]


def play(script: Script) -> None:
    async def whole() -> None:
        master, clock = FakeMaster(), Clock()
        master.put(ROOT_INO, b"d", directory(2))
        master.put(2, b"a", file(5))
        master.put(2, b"b", file(6))
        async with opened(master, clock) as namespace:
            await script(namespace, master, clock)

    run(whole())


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.names.stream.PAUSE_S", 0.001)


def test_a_name_is_asked_once_and_then_answered_at_once() -> None:
    async def script(it: RemoteNamespace, master: FakeMaster, clock: Clock) -> None:
        assert it.lookup_nowait(2, b"a") is None
        assert await it.lookup(2, b"a") == m.Found(file(5), 60.0)
        clock.now += 20
        assert it.lookup_nowait(2, b"a") == m.Found(file(5), 40.0)
        assert await it.getattr(5) == m.Found(file(5), 40.0)
        assert await it.lookup(2, b"nothing") == m.Found(None, 60.0)
        assert it.lookup_nowait(2, b"nothing") == m.Found(None, 60.0)
        clock.now += 41
        assert it.lookup_nowait(2, b"a") is None
        assert master.count(m.Lookup) == 2
        assert master.count(m.GetAttr) == 0

    play(script)


def test_names_that_are_asked_together_go_together() -> None:
    async def script(it: RemoteNamespace, master: FakeMaster, clock: Clock) -> None:
        found = await asyncio.gather(*(it.lookup(2, name) for name in (b"a", b"b", b"c", b"a")))
        inodes = [one.inode for one in found]
        assert inodes == [file(5), file(6), None, file(5)]
        assert master.count(c.Batch) == 1
        assert master.count(m.Lookup) == 0
        assert it._lookups == {}, "nothing is kept of questions that are answered"

    play(script)


def test_names_of_many_directories_go_together_where_they_have_one_source() -> None:
    async def script(it: RemoteNamespace, master: FakeMaster, clock: Clock) -> None:
        for ino in (20, 21, 22):
            master.put(ROOT_INO, b"d%d" % ino, directory(ino))
            master.put(ino, b"a", file(ino * 10))
            master.put(ino, b"b", file(ino * 10 + 1))
        await asyncio.gather(*(it.lookup(ino, b"a") for ino in (20, 21, 22)))
        assert (master.count(m.Lookup), master.count(c.Batch)) == (3, 0)
        await asyncio.gather(*(it.locate(ino * 10) for ino in (20, 21, 22)))
        found = await asyncio.gather(*(it.lookup(ino, b"b") for ino in (20, 21, 22)))
        assert [one.inode for one in found] == [file(ino * 10 + 1) for ino in (20, 21, 22)]
        assert (master.count(m.Lookup), master.count(c.Batch)) == (3, 1)

    play(script)


def test_a_listing_answers_for_its_names() -> None:
    async def script(it: RemoteNamespace, master: FakeMaster, clock: Clock) -> None:
        page = await it.list_dir(2, b"", 1)
        assert [entry.name for entry in page.entries] == [b"a"]
        assert page.next == b"a"
        page = await it.list_dir(2, page.next, 1)
        assert [(entry.name, page.next) for entry in page.entries] == [(b"b", b"")]
        assert it.lookup_nowait(2, b"a") == m.Found(file(5), 60.0)
        assert it.lookup_nowait(2, b"b") == m.Found(file(6), 60.0)
        again = await it.list_dir(2, b"", 1)
        assert bytes(again.entries[0].inode) == encode(file(5))
        assert master.count(m.ListDir) == 2

    play(script)


def test_files_are_located_in_one_call_and_then_by_their_directory() -> None:
    async def script(it: RemoteNamespace, master: FakeMaster, clock: Clock) -> None:
        master.put(2, b"c", file(7))
        await it.list_dir(2, b"", 10)
        assert it.locate_nowait(5) is None
        places = await asyncio.gather(it.locate(5), it.locate(6))
        assert [(place.ufs, place.path) for place in places] == [
            (SOURCE.key, b"dir2/a"),
            (SOURCE.key, b"dir2/b"),
        ]
        assert master.count(c.Locate) == 1
        place = it.locate_nowait(7)
        assert place is not None
        assert (place.path, place.content) == (b"dir2/c", ContentId.of(NAMESPACE, file(7)))
        with pytest.raises(Stale):
            await it.locate(99)

    play(script)


def test_a_change_is_heard_before_sessions_hear_of_it() -> None:
    async def script(it: RemoteNamespace, master: FakeMaster, clock: Clock) -> None:
        await it.lookup(2, b"a")
        heard: list[tuple[m.Invalidate, m.Found | None]] = []

        async def listen() -> None:
            async for event in it.events(-1):
                heard.append((event, it.lookup_nowait(2, b"a")))

        listeners = [asyncio.ensure_future(listen()) for _ in range(2)]
        await asyncio.sleep(0)
        master.change(2, b"a", file(8))
        await until(lambda: len(heard) == 2)
        for event, known in heard:
            assert event.entries == [(2, b"a")]
            assert known is None, "what changed is not answered any more"
        assert (await it.lookup(2, b"a")).inode == file(8)
        for listener in listeners:
            listener.cancel()

    play(script)


def test_an_answer_that_a_change_overtook_is_passed_on_for_no_time() -> None:
    async def script(it: RemoteNamespace, master: FakeMaster, clock: Clock) -> None:
        master.held.add(m.Lookup)
        early = asyncio.ensure_future(it.lookup(2, b"a"))
        await until(lambda: master.count(m.Lookup) == 1)
        master.change(2, b"a", file(8))
        await until(lambda: it._stream.seq == master.seq)
        late = asyncio.ensure_future(it.lookup(2, b"a"))
        await until(lambda: master.count(m.Lookup) == 2)
        master.free()
        assert await early == m.Found(file(5), 0.0)
        assert await late == m.Found(file(8), 60.0)
        assert it.lookup_nowait(2, b"a") == m.Found(file(8), 60.0)

    play(script)


def test_who_locates_after_a_change_does_not_share_an_older_answer() -> None:
    async def script(it: RemoteNamespace, master: FakeMaster, clock: Clock) -> None:
        master.held.add(c.Locate)
        early = asyncio.ensure_future(it.locate(5))
        await until(lambda: master.count(c.Locate) == 1)
        master.change(2, b"a", None)
        await until(lambda: it._stream.seq == master.seq)
        late = asyncio.ensure_future(it.locate(5))
        await until(lambda: master.count(c.Locate) == 2)
        master.free()
        assert (await early).content.ino == 5
        with pytest.raises(Stale):
            await late
        assert it.locate_nowait(5) is None

    play(script)


def test_a_lost_position_forgets_everything_and_says_so() -> None:
    async def script(it: RemoteNamespace, master: FakeMaster, clock: Clock) -> None:
        await it.lookup(2, b"a")
        stream = it.events(-1)
        assert isinstance(stream, AsyncGenerator)
        event = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        master.tree[2, b"a"] = file(9)
        master.trim()
        heard = await event
        assert heard.everything
        assert it.lookup_nowait(2, b"a") is None
        assert (await it.lookup(2, b"a")).inode == file(9)
        master.change(2, b"a", file(10))
        assert (await anext(stream)).entries == [(2, b"a")], "the stream goes on"
        await stream.aclose()

    play(script)


def test_while_the_master_is_down_what_is_known_is_answered_shortly() -> None:
    async def script(it: RemoteNamespace, master: FakeMaster, clock: Clock) -> None:
        await it.resolve(b"")
        await it.list_dir(2, b"", 10)
        await it.lookup(ROOT_INO, b"d")
        await it.lookup(2, b"nothing")
        await it.locate(5)
        master.set_down(True)
        await until(lambda: not it._stream.intact)
        assert it.lookup_nowait(2, b"a") == m.Found(file(5), DEGRADED_VALID_S)
        clock.now += 1000
        assert it.lookup_nowait(2, b"a") == m.Found(file(5), DEGRADED_VALID_S)
        assert await it.getattr(5) == m.Found(file(5), DEGRADED_VALID_S)
        page = await it.list_dir(2, b"", 10)
        assert [entry.name for entry in page.entries] == [b"a", b"b"]
        assert page.valid_for_s == DEGRADED_VALID_S
        assert (await it.resolve(b"/d/a")).inode == file(5)
        assert it.locate_nowait(6) is not None
        for unknown in (it.lookup(2, b"nothing"), it.lookup(2, b"new"), it.getattr(77)):
            with pytest.raises(Unreachable):
                await unknown
        master.set_down(False)
        await until(lambda: it._stream.intact)
        assert await it.lookup(2, b"a") == m.Found(file(5), 60.0)

    play(script)


def test_changes_that_were_missed_are_heard_before_answers_are_long_again() -> None:
    async def script(it: RemoteNamespace, master: FakeMaster, clock: Clock) -> None:
        await it.lookup(2, b"a")
        master.set_down(True)
        await until(lambda: not it._stream.intact)
        master.change(2, b"a", file(8))
        assert it.lookup_nowait(2, b"a") == m.Found(file(5), DEGRADED_VALID_S)
        master.set_down(False)
        await until(lambda: it._stream.intact)
        assert it.lookup_nowait(2, b"a") is None
        assert await it.lookup(2, b"a") == m.Found(file(8), 60.0)

    play(script)


def test_a_master_that_does_not_answer_is_not_waited_for_where_something_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("worker.names.namespace.PATIENCE_S", 0.01)

    async def script(it: RemoteNamespace, master: FakeMaster, clock: Clock) -> None:
        await it.lookup(2, b"a")
        clock.now += 1000
        master.held |= {m.Lookup, m.GetAttr}
        assert await it.lookup(2, b"a") == m.Found(file(5), DEGRADED_VALID_S)
        assert await it.getattr(5) == m.Found(file(5), DEGRADED_VALID_S)
        master.free()
        monkeypatch.setattr("worker.names.namespace.PATIENCE_S", 60.0)
        assert await it.lookup(2, b"a") == m.Found(file(5), 60.0)

    play(script)


def test_what_was_valid_for_no_time_is_not_answered_while_the_master_is_down() -> None:
    async def script(it: RemoteNamespace, master: FakeMaster, clock: Clock) -> None:
        master.valid_for_s = 0.0
        await it.lookup(2, b"a")
        master.set_down(True)
        with pytest.raises(Unreachable):
            await it.lookup(2, b"a")

    play(script)


def test_only_what_the_master_allowed_may_go_and_for_as_long_as_it_said() -> None:
    async def script(it: RemoteNamespace, master: FakeMaster, clock: Clock) -> None:
        contents = [ContentId.of(NAMESPACE, file(ino)) for ino in (5, 6, 7)]
        master.permitted = lambda key: key != contents[1].key
        given = await it.permit_eviction(contents)
        assert given.allowed == {contents[0].name, contents[2].name}
        assert given.valid_for_s == 10.0
        clock.now += 4
        given = await it.permit_eviction([contents[0]])
        assert (len(given.allowed), given.valid_for_s) == (1, 6.0)
        assert master.count(c.PermitEviction) == 1
        master.permitted = lambda key: False
        clock.now += 2
        assert (await it.permit_eviction([contents[0]])).allowed == frozenset()
        master.set_down(True)
        with pytest.raises(Unreachable):
            await it.permit_eviction([contents[0]])

    play(script)


def test_many_contents_are_asked_about_in_batches() -> None:
    async def script(it: RemoteNamespace, master: FakeMaster, clock: Clock) -> None:
        contents = [ContentId.of(NAMESPACE, file(ino)) for ino in range(10, 10 + 1500)]
        given = await it.permit_eviction(contents)
        assert len(given.allowed) == 1500
        assert master.count(c.PermitEviction) == 2

    play(script)


def test_a_reported_change_is_believed_at_once() -> None:
    async def script(it: RemoteNamespace, master: FakeMaster, clock: Clock) -> None:
        await it.lookup(2, b"a")
        await it.locate(5)
        await it.report_changed(5)
        assert it.lookup_nowait(2, b"a") is None
        assert it.locate_nowait(5) is None
        assert master.count(c.ReportChanged) == 1

    play(script)


def test_a_hint_goes_to_the_master_and_its_answer_to_who_gave_it() -> None:
    async def script(it: RemoteNamespace, master: FakeMaster, clock: Clock) -> None:
        await it.list_next(5)
        assert master.asked[-1] == c.ListNext(NAMESPACE, 5)
        with pytest.raises(Stale):
            await it.list_next(99)
        master.set_down(True)
        with pytest.raises(Unreachable):
            await it.list_next(5)

    play(script)


def test_sources_are_found_and_remembered() -> None:
    async def script(it: RemoteNamespace, master: FakeMaster, clock: Clock) -> None:
        with pytest.raises(NotFound):
            it.ufs(SOURCE.key)
        assert await it.find_ufs(SOURCE.key) == SOURCE
        with pytest.raises(NotFound):
            await it.find_ufs("s3://other")
        master.set_down(True)
        assert await it.find_ufs(SOURCE.key) == SOURCE
        assert it.ufs(SOURCE.key) == SOURCE

    play(script)


def test_another_namespace_at_the_master_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    async def script(it: RemoteNamespace, master: FakeMaster, clock: Clock) -> None:
        master.namespace = m.NamespaceId(b"o" * 16)
        master.set_down(True)
        await until(lambda: not it._stream.intact)
        master.set_down(False)
        await until(lambda: it._stream.replaced)
        assert not it.status()["changes_heard"]
        assert [r.message for r in caplog.records if r.levelname == "ERROR"] == [
            "no such namespace here: mounts of it must be mounted again"
        ]

    play(script)


def test_the_end_ends_readers_and_questions() -> None:
    async def script() -> None:
        master = FakeMaster()
        master.held.add(m.Lookup)
        async with opened(master) as it:
            question = asyncio.ensure_future(it.lookup(2, b"a"))
            reader = asyncio.ensure_future(_all(it.events(-1)))
            await until(lambda: master.count(m.Lookup) == 1)
        assert await reader == []
        with pytest.raises(Unreachable):
            await question

    run(script())


async def _all(events: AsyncIterator[m.Invalidate]) -> list[m.Invalidate]:
    return [event async for event in events]


# ---- a store that was started again --------------------------------------------------------------


async def knows(it: RemoteNamespace) -> ContentId:
    """Has a name, a place and a permission known; the content."""
    await it.lookup(2, b"a")
    content = (await it.locate(5)).content
    assert (await it.permit_eviction([content])).allowed
    return content


def is_distrusted(it: RemoteNamespace) -> bool:
    return it.lookup_nowait(2, b"a") is None and it.locate_nowait(5) is None


def test_another_run_of_the_store_is_a_gap_though_the_position_is_the_same() -> None:
    async def script(it: RemoteNamespace, master: FakeMaster, clock: Clock) -> None:
        events = it.events(-1)
        first = asyncio.ensure_future(anext(events))
        content = await knows(it)
        version = it.policy_version
        master.put(2, b"a", file(5, etag="another file"))
        master.start_again(store_run=2)
        await until(lambda: is_distrusted(it))
        assert (await first).everything, "the mounts of the node hear of it"
        assert it.policy_version > version, "workers ask again what policies say"
        master.permitted = lambda key: False
        assert not (await it.permit_eviction([content])).allowed, "permissions are asked for anew"
        found = await it.lookup(2, b"a")
        assert found.inode is not None
        assert found.inode.etag == "another file"
        await until(lambda: it.status()["changes_heard"])
        master.change(2, b"a", file(9))
        await until(lambda: is_distrusted(it))

    play(script)


def test_the_same_run_of_the_store_is_no_gap() -> None:
    async def script(it: RemoteNamespace, master: FakeMaster, clock: Clock) -> None:
        await knows(it)
        asked = master.count(c.GetEvents)
        master.start_again(store_run=1)
        await until(lambda: master.count(c.GetEvents) > asked and it.status()["changes_heard"])
        assert it.lookup_nowait(2, b"a") is not None

    play(script)


def test_a_run_that_a_registration_names_is_heard_before_the_stream_hears_of_it() -> None:
    async def script(it: RemoteNamespace, master: FakeMaster, clock: Clock) -> None:
        await knows(it)
        it.heard_run(1)
        assert not is_distrusted(it)
        it.heard_run(2)
        assert is_distrusted(it)

    play(script)


def test_a_master_of_a_version_that_draws_no_runs_is_followed_by_positions() -> None:
    async def whole() -> None:
        master = FakeMaster()
        master.store_run = 0
        master.put(ROOT_INO, b"d", directory(2))
        master.put(2, b"a", file(5))
        async with opened(master) as it:
            await knows(it)
            master.change(2, b"b", file(6))
            await until(lambda: it.status()["sequence"] == master.seq)
            assert it.lookup_nowait(2, b"a") is not None
            master.start_again(store_run=3)  # of a version that does
            await until(lambda: is_distrusted(it))

    run(whole())


def test_an_ino_that_is_another_file_at_the_master_is_not_believed_to_be_the_name() -> None:
    """Before the node hears that the store is an earlier one."""

    async def script(it: RemoteNamespace, master: FakeMaster, clock: Clock) -> None:
        await it.lookup(2, b"a")
        master.put(2, b"a", msgspec.structs.replace(file(5), nonce=1))
        assert (await it.locate(5)).content.nonce == 1
        assert is_distrusted(it)

    play(script)


def test_the_folders_that_changed_are_known_by_position() -> None:
    async def script(it: RemoteNamespace, master: FakeMaster, clock: Clock) -> None:
        start = it.changed_folders(-1)
        assert start == m.ChangedFolders(10, [], run=1)
        assert it.changed_folders(10) == start
        assert it.changed_folders(9).everything  # from before this node followed
        master.change(2, b"a", None)
        master.change(7, b"x", file(8))
        await it.catch_up()
        assert it.changed_folders(10) == m.ChangedFolders(12, [2, 7], run=1)
        assert it.changed_folders(11) == m.ChangedFolders(12, [7], run=1)
        master.start_again(2)
        await until(lambda: it.changed_folders(-1).run == 2)
        assert it.changed_folders(11).everything

    play(script)
