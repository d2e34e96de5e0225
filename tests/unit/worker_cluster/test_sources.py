"""The sources of a node in a cluster: paths that are attached, origins that are found when they are
read."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.errors import (
    AccessDenied,
    BadConfig,
    CredentialsMissing,
    InUse,
    NotADirectory,
    NotFound,
    Unreachable,
)
from cachefs.core.model import ROOT_INO, Fingerprint, Kind, NamespaceId, UfsSpec
from connectors.base import Connector
from connectors.meter import Meter
from tests.unit.worker_cluster.fake_master import (
    NAMESPACE,
    SOURCE,
    FakeMaster,
    directory,
    file,
    run,
    until,
)
from worker.names.lazy_connector import AGAIN_S, FAILURE_KEPT_S, LazyConnector
from worker.names.namespace import RemoteNamespace
from worker.names.sources import ClusterSources

VERSION = Fingerprint(Kind.FILE, 4)


class FakeConnector:
    def __init__(self, spec: UfsSpec) -> None:
        self.spec = spec
        self.closed = False

    def read_all(self, path: bytes, version: Fingerprint) -> memoryview:
        if path == b"secret" and "profile" not in self.spec.options:
            raise AccessDenied("no")
        return memoryview(b"%s of %s" % (path, self.spec.url.encode()))

    def ask(self, path: bytes, offset: int, size: int, version: Fingerprint) -> object:
        return object()

    def close(self) -> None:
        self.closed = True


class Rig:
    def __init__(self) -> None:
        self.master = FakeMaster()
        self.opened: list[FakeConnector] = []

    def open_connector(self, spec: UfsSpec, meter: Meter) -> FakeConnector:
        self.opened.append(FakeConnector(spec))
        return self.opened[-1]

    @asynccontextmanager
    async def sources(self) -> AsyncIterator[ClusterSources]:
        sources = ClusterSources(self.master, self.open_connector)
        try:
            yield sources
        finally:
            await sources.close()


def play(script: Callable[[ClusterSources, Rig], Awaitable[None]]) -> Rig:
    rig = Rig()
    rig.master.put(ROOT_INO, b"data", directory(2))
    rig.master.put(2, b"a", file(5))

    async def whole() -> None:
        async with rig.sources() as sources:
            await script(sources, rig)

    run(whole())
    return rig


def attach(url: str) -> m.Attach:
    return m.Attach(UfsSpec(url))


def test_a_path_of_the_cluster_is_attached() -> None:
    async def script(it: ClusterSources, rig: Rig) -> None:
        with pytest.raises(NotFound):
            it.service(NAMESPACE)
        assert await it.attach(attach("cachefs://fake:1/data")) == m.Attached(
            NAMESPACE, directory(2)
        )
        assert (await it.attach(attach("cachefs://fake:1"))).root == directory(ROOT_INO)
        assert it.service(NAMESPACE).namespace == NAMESPACE
        assert rig.master.count(c.Greeting) == 1
        with pytest.raises(NotFound):
            it.service(NamespaceId(b"x" * 16))

    play(script)


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("cachefs://fake:1/nothing", NotFound),
        ("cachefs://fake:1/data/a", NotADirectory),
        ("cachefs://other:1/data", InUse),
        ("cachefs://fake/data", InUse),  # another port
        ("s3://bucket/data", BadConfig),
        ("cachefs:///data", BadConfig),
    ],
)
def test_what_cannot_be_attached_says_why(url: str, error: type[Exception]) -> None:
    async def script(it: ClusterSources, rig: Rig) -> None:
        with pytest.raises(error):
            await it.attach(attach(url))

    play(script)


def test_without_a_master_only_what_was_attached_before_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(it: ClusterSources, rig: Rig) -> None:
        rig.master.set_down(True)
        with pytest.raises(Unreachable):
            await it.attach(attach("cachefs://fake:1/data"))
        rig.master.set_down(False)
        first = await it.attach(attach("cachefs://fake:1/data"))
        rig.master.tell((9, b"unknown"))  # attributes without a name go with it
        await until(lambda: it._current is not None and it._current._stream.seq == rig.master.seq)
        rig.master.set_down(True)
        again = await it.attach(attach("cachefs://fake:1/data/"))
        assert (again.namespace, again.root) == (first.namespace, first.root)
        assert "serving what is known" in again.warning
        with pytest.raises(Unreachable):
            await it.attach(attach("cachefs://fake:1/other"))
        rig.master.set_down(False)
        assert (await it.attach(attach("cachefs://fake:1/data"))).warning == ""
        monkeypatch.setattr("worker.names.sources.PATIENCE_S", 0.01)
        rig.master.held.add(m.Resolve)
        again = await it.attach(attach("cachefs://fake:1/data"))
        assert "serving what is known" in again.warning, "nor for one that hangs"
        monkeypatch.setattr("worker.names.sources.LOOK_S", 0.01)
        new = asyncio.ensure_future(it.attach(attach("cachefs://fake:1/data/other")))
        await until(lambda: rig.master.count(m.Resolve) > 2)
        await asyncio.wait([new], timeout=0.05)
        assert not new.done(), "a master that answers others may wait for an origin"
        rig.master.down = True
        with pytest.raises(Unreachable, match="gives no answer"):
            await new

    play(script)


def test_two_attaches_at_one_time_greet_once() -> None:
    async def script(it: ClusterSources, rig: Rig) -> None:
        await asyncio.gather(*(it.attach(attach("cachefs://fake:1/data")) for _ in range(3)))
        assert rig.master.count(c.Greeting) == 1

    play(script)


def test_a_connector_is_made_by_the_first_read_and_shared() -> None:
    async def script(it: ClusterSources, rig: Rig) -> None:
        await it.attach(attach("cachefs://fake:1/data"))
        first = it.connector(NAMESPACE, SOURCE.key)
        assert it.connector(NAMESPACE, SOURCE.key) is first
        assert rig.opened == []
        reads = (asyncio.to_thread(first.read_all, b"x", VERSION) for _ in range(4))
        for data in await asyncio.gather(*reads):
            assert bytes(data) == b"x of s3://bucket/data"
        assert [connector.spec for connector in rig.opened] == [SOURCE]
        assert rig.master.count(c.GetUfs) == 1
        assert [*it.status()[0]["origins"]] == [SOURCE.key]

    rig = play(script)
    assert rig.opened[0].closed


def test_sources_that_come_and_go_fill_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    async def find(self: RemoteNamespace, key: str) -> UfsSpec:
        return UfsSpec(f"s3://{key}")

    monkeypatch.setattr(RemoteNamespace, "find_ufs", find)
    monkeypatch.setattr("worker.names.sources.MAX_CONNECTORS", 2)

    async def script(it: ClusterSources, rig: Rig) -> None:
        await it.attach(attach("cachefs://fake:1/data"))

        async def read(key: str) -> bytes:
            found = it.connector(NAMESPACE, key)
            return bytes(await asyncio.to_thread(found.read_all, b"x", VERSION))

        for key in ("one", "two", "one", "three"):
            assert await read(key) == b"x of s3://" + key.encode()
        assert not any(connector.closed for connector in rig.opened), "reads may use them"
        assert sorted(it.status()[0]["origins"]) == ["one", "three"]
        assert await read("two") == b"x of s3://two"

    play(script)


def test_a_source_that_gives_way_while_it_is_looked_up_is_read_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("worker.names.sources.MAX_CONNECTORS", 1)

    async def script(it: ClusterSources, rig: Rig) -> None:
        asked, found = asyncio.Event(), asyncio.Event()

        async def find(self: RemoteNamespace, key: str) -> UfsSpec:
            if key == "slow":
                asked.set()
                await found.wait()
            return UfsSpec(f"s3://{key}")

        monkeypatch.setattr(RemoteNamespace, "find_ufs", find)
        await it.attach(attach("cachefs://fake:1/data"))

        async def read(key: str) -> bytes:
            late = it.connector(NAMESPACE, key)
            return bytes(await asyncio.to_thread(late.read_all, b"x", VERSION))

        reading = asyncio.create_task(read("slow"))
        await asked.wait()
        assert await read("other") == b"x of s3://other"
        found.set()
        assert await reading == b"x of s3://slow"
        assert await read("slow") == b"x of s3://slow"
        assert not any(connector.closed for connector in rig.opened)

    rig = play(script)
    assert len(rig.opened) == 2
    assert all(connector.closed for connector in rig.opened)


def test_who_keeps_a_source_that_gave_way_uses_no_closed_connector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("worker.names.sources.MAX_CONNECTORS", 1)
    monkeypatch.setattr("worker.names.sources.MAX_RETIRED", 0)

    async def script(it: ClusterSources, rig: Rig) -> None:
        async def find(self: RemoteNamespace, key: str) -> UfsSpec:
            return UfsSpec(f"s3://{key}")

        monkeypatch.setattr(RemoteNamespace, "find_ufs", find)
        await it.attach(attach("cachefs://fake:1/data"))
        kept = it.connector(NAMESPACE, "kept")
        await asyncio.to_thread(kept.read_all, b"x", VERSION)
        await asyncio.to_thread(it.connector(NAMESPACE, "other").read_all, b"x", VERSION)
        assert [connector.closed for connector in rig.opened] == [True, False]
        assert kept.ask(b"x", 0, 1, VERSION) is None
        assert await asyncio.to_thread(kept.read_all, b"x", VERSION) == b"x of s3://kept"
        assert [connector.closed for connector in rig.opened] == [True, False, False]

    play(script)


def test_what_is_found_after_the_end_is_closed() -> None:
    async def script(it: ClusterSources, rig: Rig) -> None:
        await it.attach(attach("cachefs://fake:1/data"))
        await it.close()
        with pytest.raises(Unreachable, match="is ending"):
            it._make(NAMESPACE, SOURCE.key, SOURCE)

    rig = play(script)
    assert [connector.closed for connector in rig.opened] == [True]


def test_a_source_that_is_not_there_fails_the_read() -> None:
    async def script(it: ClusterSources, rig: Rig) -> None:
        with pytest.raises(NotFound):
            it.connector(NAMESPACE, SOURCE.key)
        await it.attach(attach("cachefs://fake:1/data"))
        gone = it.connector(NAMESPACE, "s3://gone")
        with pytest.raises(NotFound):
            await asyncio.to_thread(gone.read_all, b"x", VERSION)

    play(script)


def test_a_source_that_refuses_the_access_is_looked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("worker.names.lazy_connector.AGAIN_S", 0.0)

    async def script(it: ClusterSources, rig: Rig) -> None:
        await it.attach(attach("cachefs://fake:1/data"))
        late = it.connector(NAMESPACE, SOURCE.key)

        async def read(path: bytes) -> bytes:
            return bytes(await asyncio.to_thread(late.read_all, path, VERSION))

        for _ in range(2):  # an object that nobody may read spoils no other
            with pytest.raises(AccessDenied):
                await read(b"secret")
            assert await read(b"x") == b"x of s3://bucket/data"
        assert len(rig.opened) == 1
        rig.master.source = UfsSpec(SOURCE.url, {"profile": "right"})
        with pytest.raises(AccessDenied):
            await read(b"secret")
        assert await read(b"secret") == b"secret of s3://bucket/data"
        assert [connector.closed for connector in rig.opened] == [False, False]
        asked = rig.master.count(c.GetUfs)
        await read(b"secret")
        assert rig.master.count(c.GetUfs) == asked

    rig = play(script)
    assert [connector.closed for connector in rig.opened] == [True, True]


def test_a_source_whose_options_an_operator_changes_is_opened_again() -> None:
    async def script(it: ClusterSources, rig: Rig) -> None:
        await it.attach(attach("cachefs://fake:1/data"))
        late = it.connector(NAMESPACE, SOURCE.key)
        await asyncio.to_thread(late.read_all, b"x", VERSION)
        rig.master.source = UfsSpec(SOURCE.url, {"profile": "right"})
        await asyncio.to_thread(late.read_all, b"x", VERSION)
        assert len(rig.opened) == 1, "nothing says that it changed"
        rig.master.everything()
        await until(lambda: late.ask(b"x", 0, VERSION.size, VERSION) is None)
        await asyncio.to_thread(late.read_all, b"x", VERSION)
        assert [one.spec.options for one in rig.opened] == [SOURCE.options, {"profile": "right"}]

    play(script)


def test_another_namespace_of_the_master_is_for_new_mounts() -> None:
    async def script(it: ClusterSources, rig: Rig) -> None:
        await it.attach(attach("cachefs://fake:1/data"))
        rig.master.namespace = NamespaceId(b"o" * 16)
        await it.on_namespace_changed(NAMESPACE)
        assert rig.master.count(c.Greeting) == 1
        await it.on_namespace_changed(rig.master.namespace)
        attached = await it.attach(attach("cachefs://fake:1/data"))
        assert attached.namespace == rig.master.namespace
        assert it.service(NAMESPACE) is not it.service(rig.master.namespace)

    play(script)


def test_a_namespace_that_is_found_replaced_is_for_new_mounts_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("worker.names.stream.PAUSE_S", 0.001)

    async def script(it: ClusterSources, rig: Rig) -> None:
        first = await it.attach(attach("cachefs://fake:1/data"))
        rig.master.namespace = NamespaceId(b"o" * 16)
        rig.master.set_down(True)
        node = await it.open()
        await until(lambda: not node.status()["changes_heard"])
        rig.master.set_down(False)
        await until(lambda: node.replaced)
        second = await it.attach(attach("cachefs://fake:1/data"))
        assert second.namespace == rig.master.namespace
        rig.master.namespace = first.namespace
        await it.on_namespace_changed(first.namespace)
        assert (await it.attach(attach("cachefs://fake:1/data"))).namespace == first.namespace
        assert it.service(first.namespace) is node

    play(script)
    assert [r.levelname for r in caplog.records].count("ERROR") == 1


# ---- connectors that are found late --------------------------------------------------------------


class Finder:
    def __init__(self) -> None:
        self.error: Exception | None = None
        self.found: list[FakeConnector] = []
        self.calls = 0
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self) -> Connector:
        self.calls += 1
        assert self.gate.wait(10)
        if self.error is not None:
            raise self.error
        self.found.append(FakeConnector(SOURCE))
        return self.found[-1]  # type: ignore[return-value]


def test_a_failure_is_kept_for_a_moment() -> None:
    now = [0.0]
    finder = Finder()
    late = LazyConnector(finder, clock=lambda: now[0])
    finder.error = CredentialsMissing("none")
    for _ in range(3):
        with pytest.raises(CredentialsMissing):
            late.read_all(b"x", VERSION)
    assert finder.calls == 1
    finder.error = None
    now[0] += FAILURE_KEPT_S
    assert bytes(late.read_all(b"x", VERSION)) == b"x of s3://bucket/data"
    assert finder.calls == 2


def test_a_refusal_is_looked_into_now_and_then_and_what_was_found_goes_on() -> None:
    now = [0.0]
    finder = Finder()
    late = LazyConnector(finder, clock=lambda: now[0])
    for _ in range(3):
        with pytest.raises(AccessDenied):
            late.read_all(b"secret", VERSION)
    assert finder.calls == 1
    now[0] += AGAIN_S
    finder.error = Unreachable("no master")
    for _ in range(3):
        assert bytes(late.read_all(b"x", VERSION)) == b"x of s3://bucket/data"
    assert finder.calls == 2


def test_a_change_that_cannot_be_looked_up_now_is_looked_up_later() -> None:
    now = [0.0]
    finder = Finder()
    late = LazyConnector(finder, clock=lambda: now[0])
    late.read_all(b"x", VERSION)
    late.look_again()
    finder.error = Unreachable("no master")
    for _ in range(3):
        assert bytes(late.read_all(b"x", VERSION)) == b"x of s3://bucket/data"
    assert finder.calls == 2
    finder.error = None
    now[0] += AGAIN_S
    for _ in range(3):
        late.read_all(b"x", VERSION)
    assert finder.calls == 3
