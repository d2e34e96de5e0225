"""Views over clients that die, disks that fail, and commands that are interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from cachefs.core.errors import Unavailable
from cachefs.core.model import NamespaceId
from tests.integration.test_views import LIMIT_S, origin_with, run
from tests.integration.views_rig import DEFAULTS, FakeMount, Node, node
from tests.unit.worker.rig import until
from tests.unit.worker_tiers.rig import come_back, leave
from worker.store.changes import PutView
from worker.store.view_records import ViewRecord
from worker.views import covers
from worker.views.view import new_number
from worker.views.views import _Report


class DeadMount(FakeMount):
    """A client that has died: the first command to it shows that, and ends it. Later ones are
    dropped."""

    is_closed = False

    def send_cover(
        self, cover: int, namespace: NamespaceId, ino: int, path: bytes, fd: int
    ) -> None:
        os.close(fd)
        self.send_uncover(cover)

    def send_uncover(self, cover: int) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.views.left(self, is_followed=False)


def knows(one: Node, mount: FakeMount) -> bool:
    """Returns whether anything of the node still counts on the client of a mount."""
    views = one.views._views
    at_views = any(mount in view._hosts or mount in view.covers._table.hosts for view in views)
    return at_views or mount in one.views._hosts


def test_a_client_that_dies_while_it_joins_is_known_to_no_view(tmp_path: Path) -> None:
    async def script() -> None:
        async with node(tmp_path, origin_with()) as one:
            await one.mount()
            for path in (b"train/c0", b"train/c1", b"other"):
                assert (await one.freeze(path)).state == "covered"
            dead = DeadMount(one.views, "/dead")
            one.views.joined(dead)
            assert not knows(one, dead)

    run(script())


def test_the_mounts_beside_one_that_has_died_are_covered(tmp_path: Path) -> None:
    async def script() -> None:
        async with node(tmp_path, origin_with()) as one:
            dead = DeadMount(one.views, "/dead")
            one.views.joined(dead)
            mount = await one.mount()
            (status,) = (await one.views.freeze(one.namespace, b"train", wait=True)).views
            assert (status.state, status.covers) == ("covered", 1)
            assert not knows(one, dead)
            assert mount.trees() == {b"train": await one.expected(b"train")}

    run(script())


def test_reports_of_a_client_that_has_died_are_not_taken(tmp_path: Path) -> None:
    """The worker takes them once it has read its views; the first one ends the client."""

    async def script() -> None:
        async with node(tmp_path, origin_with()) as one:
            await one.mount()
            await one.freeze(b"train")
            dead = DeadMount(one.views, "/dead")
            numbers = (1, one.view(b"train").covers.number)  # the first one is unknown
            one.views._reports = [_Report(dead, cover, True, "") for cover in numbers]
            one.views._take_reports(also_unknown=True)
            assert not knows(one, dead)

    run(script())


async def fails(*_: Any) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_view_that_a_full_disk_did_not_let_go_outlives_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script() -> None:
        origin = origin_with()
        async with node(tmp_path, origin) as one:
            mount = await one.mount()
            await one.freeze(b"train")
            with monkeypatch.context() as patch:
                patch.setattr(one.tier.views, "thaw", fails)
                with pytest.raises(Unavailable):
                    await one.views.thaw(one.namespace, b"train")
            await one.covered(b"train")
            kept, mount.covers = mount.covers, {}
        async with node(tmp_path, origin) as one:
            mount = await one.mount("/m", kept)
            await one.covered(b"train")
            assert mount.trees() == {b"train": await one.expected(b"train")}

    run(script())


def test_a_thaw_that_ends_late_takes_no_name_from_the_view_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk does not answer for a while: the thaw fails, and its record is written later."""
    written, held = threading.Event(), threading.Event()

    async def script() -> None:
        async with node(tmp_path, origin_with()) as one:
            mount = await one.mount()
            await one.freeze(b"train")
            write = one.tier.disk.writer.write

            def late(changes: Sequence[Any]) -> None:
                records = [change.record for change in changes if isinstance(change, PutView)]
                if any(record is not None and record.thawed for record in records):
                    held.set()
                    assert written.wait(LIMIT_S)
                write(changes)

            remove, view = one.tier.views.remove, one.view(b"train")

            async def later(*args: Any) -> None:
                await until(lambda: bool(mount.covers or view.reason))  # covered, or it waits
                await remove(*args)

            monkeypatch.setattr(one.tier.views, "remove", later)
            monkeypatch.setattr(one.tier.disk.writer, "write", late)
            thawing = asyncio.ensure_future(one.views.thaw(one.namespace, b"train"))
            await until(held.is_set)
            leave(one.tier)
            with pytest.raises(Unavailable):
                await thawing
            come_back(one.tier)
            locks = one.tier.contents.trees_change, one.tier.views._one_record
            while not any(lock._waiters for lock in locks):  # until it is built again
                view.hasten()
                await asyncio.sleep(0.002)
            written.set()
            await one.covered(b"train")
            await one.removed()
            assert mount.trees() == {b"train": await one.expected(b"train")}

    run(script())


@pytest.mark.parametrize("waits_for", ["its task", "a client"])
def test_a_view_whose_thaw_is_interrupted_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits_for: str
) -> None:
    monkeypatch.setattr(covers, "UNCOVER_S", 0.05)

    async def script() -> None:
        async with node(tmp_path, origin_with()) as one:
            mount = await one.mount()
            await one.freeze(b"train")
            view = one.view(b"train")
            mount.hangs = waits_for == "a client"
            thawing = asyncio.ensure_future(one.views.thaw(one.namespace, b"train"))
            await asyncio.sleep(0)
            if mount.hangs:
                await until(lambda: view._uncovering is not None)
            thawing.cancel()
            await asyncio.gather(thawing, return_exceptions=True)
            mount.hangs = False
            assert view in one.views._runs
            await one.covered(b"train")
            one.origin.put(b"train/c0/f0", b"new")
            await one.sync()
            await one.covered(b"train")
            assert mount.trees() == {b"train": await one.expected(b"train")}
            await one.views.thaw(one.namespace, b"train")
            assert not mount.covers

    run(script())


@pytest.mark.parametrize("is_failing", [False, True])
def test_a_view_whose_tier_goes_during_its_thaw_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_failing: bool
) -> None:
    async def script() -> None:
        async with node(tmp_path, origin_with()) as one:
            await one.mount()
            await one.freeze(b"train")
            view = one.view(b"train")

            async def thaw(*_: Any) -> None:
                with monkeypatch.context() as gone:
                    gone.setattr(one.cache.views, "tiers", list)
                    one.views._tiers_changed()
                if is_failing:
                    await fails()

            monkeypatch.setattr(one.tier.views, "thaw", thaw)
            with pytest.raises(Unavailable) if is_failing else contextlib.nullcontext():
                await one.views.thaw(one.namespace, b"train")
            assert view not in one.views._runs
            assert not one.views.all()

    run(script())


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_freeze_that_failed_after_it_was_recorded_leaves_no_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    async def script() -> None:
        origin, recorded = origin_with(), asyncio.Event()
        async with node(tmp_path, origin) as one:
            await one.mount()
            make = one.tier.views.make

            async def late(number: int, record: ViewRecord) -> None:
                await make(number, record)
                recorded.set()
                if not is_cancelled:
                    await fails()
                await asyncio.Event().wait()

            with monkeypatch.context() as patch:
                patch.setattr(one.tier.views, "make", late)
                freezing = asyncio.ensure_future(one.freeze(b"train"))
                await recorded.wait()
                if is_cancelled:
                    freezing.cancel()
                with pytest.raises(asyncio.CancelledError if is_cancelled else Unavailable):
                    await freezing
            await until(lambda: not one.tier.disk.directory.index.views())
            await one.removed()
        async with node(tmp_path, origin) as one:
            await one.mount()
            assert not one.views.all()

    run(script())


def test_a_freeze_that_is_interrupted_before_it_is_recorded_leaves_no_view(tmp_path: Path) -> None:
    """The disk writes the record later, before what removes it."""

    async def script() -> None:
        origin = origin_with()
        async with node(tmp_path, origin) as one:
            await one.mount()
            change = one.tier.views._one_record
            async with change:  # what the disk does takes its time
                freezing = asyncio.ensure_future(one.freeze(b"train"))
                await until(lambda: bool(change._waiters))
                freezing.cancel()
                await asyncio.gather(freezing, return_exceptions=True)
                await until(lambda: len(change._waiters or ()) == 2)
            await until(lambda: not (change.locked() or change._waiters))
            await one.removed()
            assert not one.tier.disk.directory.index.views()
        async with node(tmp_path, origin) as one:
            await one.mount()
            assert not one.views.all()

    run(script())


def test_a_thaw_ends_all_views_of_its_path(tmp_path: Path) -> None:
    async def script() -> None:
        origin = origin_with()
        async with node(tmp_path, origin) as one:
            record = ViewRecord(bytes(one.namespace), b"train", DEFAULTS)
            for _ in range(2):
                await one.tier.views.make(new_number(), record)
        async with node(tmp_path, origin) as one:
            mount = await one.mount()
            assert len(one.views.all()) == 2
            await one.views.thaw(one.namespace, b"train")
            assert not one.views.all()
            assert not mount.covers

    run(script())
