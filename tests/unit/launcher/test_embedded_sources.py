"""Sources of the embedded server: what a failed attach leaves, and what ends with the server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cachefs.core import messages as m
from cachefs.core.errors import InUse, NotFound
from cachefs.core.model import UfsSpec
from cachefs.launcher import embedded
from cachefs.launcher.embedded import EmbeddedSources, Source
from cachefs.launcher.state import Pointer, StateHome
from connectors.base import Connector
from connectors.compose import open_connector
from connectors.decorator import Decorator
from connectors.file.connector import READING

LIMIT_S = 20.0


@pytest.fixture
def home(tmp_path: Path) -> StateHome:
    (tmp_path / "data").mkdir()
    return StateHome(tmp_path / "home")


@pytest.fixture
def attach(tmp_path: Path) -> m.Attach:
    return m.Attach(UfsSpec(f"file://{tmp_path}/data"), 60.0)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def run(home: StateHome, test: Callable[[EmbeddedSources], Awaitable[None]]) -> None:
    async def main() -> None:
        sources = EmbeddedSources(home, 5.0, Pointer("/nowhere.sock", os.getpid()), "/cache")
        try:
            await asyncio.wait_for(test(sources), LIMIT_S)
        finally:
            await sources.close()

    asyncio.run(main())


@pytest.mark.parametrize("error", [OSError(28, "no space"), NotFound("no such bucket")])
def test_a_failed_attach_leaves_nothing_and_the_next_works(
    home: StateHome, attach: m.Attach, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Whatever kind of failure it was, and however late: here the last step fails."""

    def fail(*_: object) -> None:
        raise error

    async def test(sources: EmbeddedSources) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(embedded, "write_pointer", fail)
            for _ in range(2):
                with pytest.raises(type(error)):
                    await sources.attach(attach)
        assert sources.status() == []
        attached = await sources.attach(attach)
        assert sources.service(attached.namespace) is not None

    run(home, test)


def test_a_late_hearer_of_a_failure_does_not_undo_the_next_attempt(
    home: StateHome, attach: m.Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[UfsSpec] = []
    really_open = Source.open

    async def open_or_fail(source: Source, sync_interval_s: float) -> None:
        opened.append(source.spec)
        if len(opened) == 1:
            source.connector.close()
            raise NotFound("not yet")
        await really_open(source, sync_interval_s)

    monkeypatch.setattr(Source, "open", open_or_fail)

    async def again(sources: EmbeddedSources) -> m.Attached:
        try:
            return await sources.attach(attach)
        except NotFound:
            return await sources.attach(attach)

    async def test(sources: EmbeddedSources) -> None:
        one, other = await asyncio.gather(again(sources), again(sources))
        assert one.namespace == other.namespace
        assert len(opened) == 2, "the second attempt is shared"

    run(home, test)


class Expecting:
    """In place of `CacheLoading`: counts the calls that announce downloads."""

    def __init__(self) -> None:
        self.expected = 0

    def expect_downloads(self) -> None:
        self.expected += 1


@pytest.mark.parametrize("requests", [True, False])
def test_an_attach_prepares_for_downloads(
    home: StateHome, attach: m.Attach, monkeypatch: pytest.MonkeyPatch, requests: bool
) -> None:
    """Of stores whose pages a process can download."""
    told = msgspec.structs.replace(READING, requests=requests)
    monkeypatch.setattr(Decorator, "capabilities", told)
    monkeypatch.setattr(Source, "start_loading", lambda *_: None)

    async def test(sources: EmbeddedSources) -> None:
        cache = Expecting()
        await sources.attach(attach)
        sources.start_loading(cache)  # type: ignore[arg-type]
        for count in (1, 2):
            await sources.attach(attach)
            assert cache.expected == (count if requests else 0)
        await sources.stop_loading()

    run(home, test)


def test_a_source_that_another_server_holds(
    home: StateHome, attach: m.Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[bool] = []
    monkeypatch.setattr(embedded, "LOCK_WAIT_S", 0.1)

    async def test(holder: EmbeddedSources) -> None:
        await holder.attach(attach)
        other = EmbeddedSources(home, 5.0, Pointer("/other.sock", os.getpid()), "/cache")
        before = descriptors()

        def watched(spec: UfsSpec, **options: Any) -> Connector:
            connector = open_connector(spec, **options)
            really_close = connector.close

            def close() -> None:
                closed.append(True)
                really_close()

            monkeypatch.setattr(connector, "close", close)
            return connector

        with monkeypatch.context() as patch:
            patch.setattr(embedded, "open_connector", watched)
            with pytest.raises(InUse):
                await other.attach(attach)
        assert closed == [True]
        assert descriptors() <= before
        await other.close()

    run(home, test)
