"""What a listing that is under way shows: the names so far of an ordered store, none of another."""

from __future__ import annotations

import asyncio
import itertools
import threading
from pathlib import Path

from cachefs.core.model import UfsSpec
from tests.integration.test_master import Clock, names_of, run
from tests.integration.test_mount_table import Origin, cluster, inode_of

X = UfsSpec("s3://x")
FILES = {b"d/%02d" % number: b"1" for number in range(20)}
SOON_S = 0.2
LIMIT_S = 20.0
BEFORE = 2  # pages after the first that come before the store stops


class StoppingStore:
    """Stops before a later page of a listing, until `go_on`."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.stops = threading.Event()
        self._pages = itertools.count()

    def wait(self, verb: str) -> None:
        if verb == "page" and next(self._pages) == BEFORE:
            self.stops.set()
            self.go_on.wait(LIMIT_S)


def play(directory: Path, *, ordered: bool) -> None:
    """Lists a directory of a store that stops in between."""

    async def work() -> None:
        store = StoppingStore()
        origin = Origin(FILES, page_entries=4, ordered=ordered, wait=store.wait)
        async with cluster(directory, Clock(), origin) as master:
            await master.add_ufs(b"/data", X, origin, 60.0)
            ino = (await inode_of(master, b"/data/d")).ino
            first = asyncio.ensure_future(master.list_dir(ino, b"", 2))
            assert await asyncio.to_thread(store.stops.wait, LIMIT_S)
            done, _ = await asyncio.wait([first], timeout=LIMIT_S if ordered else SOON_S)
            assert bool(done) is ordered
            store.go_on.set()
            assert [entry.name for entry in (await first).entries] == [b"00", b"01"]
            assert await names_of(master, ino) == [b"%02d" % number for number in range(20)]

    run(work())


def test_names_of_an_ordered_store_are_seen_while_the_listing_goes_on(tmp_path: Path) -> None:
    """[C-ordered]"""
    play(tmp_path, ordered=True)


def test_names_of_an_unordered_store_are_seen_once_all_are_listed(tmp_path: Path) -> None:
    """[C-unordered]"""
    play(tmp_path, ordered=False)
