"""Reports about directories above another source, about names that were absent from a listing that
failed, and about names of directories that were never listed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachefs.core.errors import AccessDenied, Unreachable
from cachefs.core.messages import SyncReply
from cachefs.core.model import UfsSpec
from connectors.base import Page
from master.namespace import Master
from master.push import look_again
from tests.integration.test_look_again import play, size_of
from tests.integration.test_master import Clock, names_of, until
from tests.integration.test_mount_table import Origin, inode_of
from tests.integration.test_reported_names import CountingOrigin, gather, never


async def ended(master: Master, started: SyncReply) -> None:
    while (await master.sync(started.sync.sync, 0, stop=False)).sync.state == "running":
        await asyncio.sleep(0)


def test_a_directory_above_another_source_is_a_part_of_this_one(tmp_path: Path) -> None:
    origin = Origin({b"d/f": b"1", b"d/e/gone": b"1"})
    inner = Origin({b"f": b"inner"})

    async def script(master: Master, clock: Clock) -> None:
        await master.add_ufs(b"/data/d/e/inner", UfsSpec("s3://inner"), inner, 3600.0)
        assert await size_of(master, b"/data/d/f") == 1
        assert await size_of(master, b"/data/d/e/gone") == 1
        assert await size_of(master, b"/data/d/e/inner/f") == 5
        origin.put(b"d/f", b"longer")
        origin.delete(b"d/e/gone")
        inner.put(b"f", b"not reported")
        await master.mounts.look_again(b"/data", [b"d/f", b"d/e/gone", b"d/e/inner/f"])
        assert await size_of(master, b"/data/d/f") == 6
        assert await size_of(master, b"/data/d/e/gone") is None
        assert await size_of(master, b"/data/d/e/inner/f") == 5

    play(tmp_path, origin, script)


class FailingListing(Origin):
    """Its first listing of a directory fails at the third page, once `go_on` is set."""

    def __init__(self, files: dict[bytes, bytes]) -> None:
        super().__init__(files, page_entries=1)
        self.go_on = threading.Event()
        self.fails = True

    def list_dir(self, path: bytes) -> Iterator[Page]:
        for number, page in enumerate(super().list_dir(path)):
            if number == 2 and self.fails:
                self.fails = False
                self.go_on.wait(30.0)
                raise AccessDenied("for now")
            yield page


@pytest.mark.parametrize("is_reported", [False, True])
def test_a_name_appears_that_was_absent_from_a_listing_that_failed(
    tmp_path: Path, is_reported: bool
) -> None:
    """Clients keep the answer of a listing in progress; they are told when it is not true."""
    origin = FailingListing({b"d/a": b"1", b"d/b": b"1", b"d/c": b"1"})

    async def script(master: Master, clock: Clock) -> None:
        ino = (await inode_of(master, b"/data/d")).ino
        listing = asyncio.ensure_future(names_of(master, ino))

        def has_passed() -> bool:
            running = master._sync.listing(ino)
            return running is not None and running.passed(b"0")

        await until(has_passed)
        assert (await master.lookup(ino, b"0")).valid_for_s > 3000
        origin.go_on.set()
        with pytest.raises(AccessDenied):
            await listing
        origin.put(b"d/0", b"22")
        position = master.position
        if is_reported:
            await master.mounts.look_again(b"/data", [b"d/0"])
        else:
            sync = await master.start_sync(b"/data/d", recursive=False, dry_run=False)
            await ended(master, sync)
        assert master.changed_folders(position).folders == [ino]
        assert await size_of(master, b"/data/d/0") == 2

    play(tmp_path, origin, script)


# ---- directories of which only the name is known -------------------------------------------------


def test_a_directory_that_was_seen_and_never_listed_ends_with_names_of_which_nothing_is_known(
    tmp_path: Path,
) -> None:
    origin = Origin({b"a/b/f": b"1", b"keep": b"1"})

    async def script(master: Master, clock: Clock) -> None:
        assert await names_of(master, (await inode_of(master, b"/data")).ino) == [b"a", b"keep"]
        origin.delete(b"a")
        await master.mounts.look_again(b"/data", [b"a/b/f"])
        assert (await master.resolve(b"/data/a")).inode is None

    play(tmp_path, origin, script)


def test_objects_that_are_added_to_a_directory_that_was_never_listed_cost_one_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = CountingOrigin({b"d/f": b"1"})

    async def script(master: Master, clock: Clock) -> None:
        await names_of(master, (await inode_of(master, b"/data")).ino)
        origin.stats = origin.lists = 0
        reported, position = gather(monkeypatch), master.position
        for number in range(100):
            await master.mounts.look_again(b"/data", [b"d/%d" % number])
        assert master.position == position + 1, "one event for the nodes"
        reported.set()
        await until(lambda: not len(master._sync.unchecked))
        assert (origin.stats, origin.lists) == (1, 0)

    play(tmp_path, origin, script)


# ---- directories that end while their origin fails, or a reader is first -------------------------


async def ends(master: Master, path: bytes) -> None:
    async with asyncio.timeout(20.0):
        while (await master.resolve(path)).inode is not None:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("failing", [b"a/b/f", b"a/b"])
def test_a_directory_ends_though_its_origin_did_not_answer_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: bytes
) -> None:
    """The name that was reported, or the directory that may have ended with it."""
    monkeypatch.setattr(look_again, "RETRY_S", 0.01)
    origin = Origin({b"a/b/f": b"1", b"keep": b"1"})

    async def script(master: Master, clock: Clock) -> None:
        await inode_of(master, b"/data/a/b/f")
        origin.delete(b"a")
        origin.fail("stat", failing, Unreachable("no route"))
        await master.mounts.look_again(b"/data", [b"a/b/f"])
        await ends(master, b"/data/a")

    play(tmp_path, origin, script)


def test_a_directory_ends_though_it_could_not_be_looked_at_when_its_listing_was_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look_again, "RETRY_S", 0.01)
    names = [b"a/b/%d" % number for number in range(look_again.CROWD)]
    origin = Origin({b"keep": b"1", **dict.fromkeys(names, b"1")})

    async def script(master: Master, clock: Clock) -> None:
        await names_of(master, (await inode_of(master, b"/data/a/b")).ino)
        origin.delete(b"a")
        origin.fail("stat", b"a/b", Unreachable("no route"))
        await master.mounts.look_again(b"/data", names)
        await ends(master, b"/data/a")

    play(tmp_path, origin, script)


def test_a_reader_of_the_last_name_ends_its_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its request ends the record of the name, which nothing compares any more."""
    never(monkeypatch)
    origin = Origin({b"a/b/f": b"1", b"keep": b"1"})

    async def script(master: Master, clock: Clock) -> None:
        await inode_of(master, b"/data/a/b/f")
        origin.delete(b"a")
        await master.mounts.look_again(b"/data", [b"a/b/f"])
        assert await size_of(master, b"/data/a/b/f") is None
        await ends(master, b"/data/a")

    play(tmp_path, origin, script)
