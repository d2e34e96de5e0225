"""The shell of migration: calls peers, brings pages, answers offers, ends with all its tasks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from cachefs.core import cluster as c
from cachefs.core.errors import CacheFSError, NoSpace, Stale, Unavailable, Unreachable
from cachefs.core.messages import Done, failure_of
from cachefs.core.model import PAGE_BYTES, ContentId, NamespaceId, Origin
from cachefs.core.placement import Member, Placement, View
from tests.services.loading import fetch
from tests.unit.worker.rig import Rig, open_reader
from worker.migration.migration import Migration
from worker.store.holdings import Holding, merge_holdings
from worker.tier.disk import no_answer

NAMESPACE = NamespaceId(b"n" * 16)
SIZE = 2 * PAGE_BYTES + 9
LIMIT_S = 60.0
ALL = 0b111


def content(ino: int, nonce: int = 5) -> ContentId:
    return ContentId(NAMESPACE, ino, 0, nonce)


class Node:
    """A cache of page bitmaps, and the migration of it."""

    def __init__(self, id: str, nodes: dict[str, Node]) -> None:
        self.bits_of: dict[bytes, int] = {}
        self.nodes = nodes
        self.settled = asyncio.Event()
        self.refreshed = 0
        self.room = 1 << 40
        self.asked: list[object] = []
        self.url = f"http://{id}:1"
        self.inos_gone: set[int] = set()
        self.is_silent = False  # its disk: what it has is not known
        self.reported = False  # that it is silent
        self.replicas = 1
        self.brought: list[bytes] = []
        nodes[self.url] = self
        self.migration = Migration(
            id,
            self.url,
            self,
            locate=self.locate,
            ask_peer=self.ask_peer,
            refresh_view=self.refresh_view,
            free_bytes=lambda: self.room,
            on_settled=lambda epoch: self.settled.set(),
            clock=lambda: time.monotonic() * 50,
        )

    async def locate(self, namespace: NamespaceId, ino: int) -> Origin:
        nonce = 6 if ino in self.inos_gone else 5
        return Origin(content(ino, nonce), "u", b"p", "", SIZE, 0)

    async def refresh_view(self) -> None:
        self.refreshed += 1

    async def ask_peer(self, url: str, call: c.Have | c.Offer) -> c.Answer:
        peer = self.nodes.get(url)
        if peer is None:
            raise Unreachable(url)
        peer.asked.append(call)
        if isinstance(call, c.Have):
            known = {} if peer.is_silent else peer.bits_of
            bits = [known.get(key, 0) for key in call.contents]
            return c.Had([one.to_bytes(64, "little") for one in bits], peer.is_silent)
        try:
            return peer.migration.offered(call)
        except CacheFSError as err:
            return failure_of(err)

    async def holdings(
        self, after: bytes, limit: int, *, leaves_out_silent: bool = False
    ) -> tuple[Holding, ...]:
        keys = sorted(key for key in self.bits_of if key > after)[:limit]
        return tuple(Holding(key, SIZE, self.bits_of[key], self.replicas) for key in keys)

    async def bits(self, key: bytes) -> int:
        if self.is_silent:
            self.reported = True
            raise no_answer()
        return self.bits_of.get(key, 0)

    async def bring(
        self, namespace: NamespaceId, ino: int, first: int, end: int, *, peers_only: bool
    ) -> int:
        assert peers_only, "migration asks no origin"
        if self.room < SIZE:
            return 0
        key = content(ino).key
        self.brought.append(key)
        others = (node.bits_of.get(key, 0) for node in self.nodes.values() if node is not self)
        here = self.bits_of.get(key, 0)
        for bits in others:
            here |= bits & ((1 << end) - 1)
        self.bits_of[key] = here
        return (here >> first & (1 << end - first) - 1).bit_count()


def run(script: Callable[[dict[str, Node]], Awaitable[None]]) -> None:
    async def body() -> None:
        nodes: dict[str, Node] = {}
        async with asyncio.timeout(LIMIT_S):
            await script(nodes)

    asyncio.run(body())


def view(epoch: int, *ids: str) -> View:
    members = tuple(Member(id, f"http://{id}:1", 1.0) for id in ids)
    return View(epoch, members, (Member("before", "http://before:1", 1.0),))


async def running(*nodes: Node) -> list[asyncio.Task[None]]:
    return [asyncio.get_running_loop().create_task(node.migration.run()) for node in nodes]


async def end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert rest == [], "nothing goes on after the end"


def test_blocks_reach_their_new_owner_and_both_say_so() -> None:
    async def script(nodes: dict[str, Node]) -> None:
        old, new = Node("a", nodes), Node("b", nodes)
        for ino in range(2, 600):
            old.bits_of[content(ino).key] = ALL
        tasks = await running(old, new)
        after = view(3, "a", "b")
        for node in (old, new):
            node.migration.on_view(after)
        await asyncio.gather(old.settled.wait(), new.settled.wait())
        assert old.migration.settled == new.migration.settled == 3
        placement = Placement(after.members)
        own = {content(i).key for i in range(2, 600) if placement.owners(i, 0)[0].url == new.url}
        assert new.bits_of == dict.fromkeys(own, ALL)
        assert len(old.bits_of) == 598, "the old holder keeps its copies"
        await end(tasks)

    run(script)


def test_what_has_other_contents_now_is_not_taken() -> None:
    async def script(nodes: dict[str, Node]) -> None:
        old, new = Node("a", nodes), Node("b", nodes)
        new.inos_gone = {7}
        for ino in (7, 8):
            old.bits_of[content(ino).key] = ALL
        tasks = await running(old, new)
        for node in (old, new):
            node.migration.on_view(view(1, "b"))
        while content(8).key not in new.bits_of:
            await asyncio.sleep(0)
        assert content(7).key not in new.bits_of
        await end(tasks)

    run(script)


def test_outdated_contents_are_not_offered_and_keep_nothing_unsettled() -> None:
    async def script(nodes: dict[str, Node]) -> None:
        old, new = Node("a", nodes), Node("b", nodes)
        old.inos_gone = {7}
        for ino in (7, 8):
            old.bits_of[content(ino).key] = ALL
        tasks = await running(old, new)
        for node in (old, new):
            node.migration.on_view(view(1, "b"))
        await asyncio.gather(old.settled.wait(), new.settled.wait())
        assert new.bits_of == {content(8).key: ALL}
        offered = [call for call in new.asked if isinstance(call, c.Offer)]
        assert {key for offer in offered for key, _ in offer.blocks} == {content(8).key}
        await end(tasks)

    run(script)


def test_a_full_cache_takes_nothing_and_refuses_for_a_while() -> None:
    async def script(nodes: dict[str, Node]) -> None:
        old, new = Node("a", nodes), Node("b", nodes)
        new.room = 0
        old.bits_of[content(7).key] = ALL
        tasks = await running(old, new)
        for node in (old, new):
            node.migration.on_view(view(1, "b"))
        while True:
            await asyncio.sleep(0)
            try:
                new.migration.offered(c.Offer("x", "http://x:1", 1, [(content(9).key, 0)]))
            except NoSpace:
                break
        assert new.bits_of == {}
        await end(tasks)

    run(script)


def test_offers_of_other_epochs_are_refused_and_a_later_one_asks_for_the_view() -> None:
    async def script(nodes: dict[str, Node]) -> None:
        node = Node("a", nodes)
        tasks = await running(node)
        node.migration.on_view(view(5, "a"))
        with pytest.raises(Stale):
            node.migration.offered(c.Offer("x", "http://x:1", 4, []))
        with pytest.raises(Unavailable):
            node.migration.offered(c.Offer("x", "http://x:1", 6, []))
        while not node.refreshed:
            await asyncio.sleep(0)
        assert node.migration.offered(c.Offer("x", "http://x:1", 5, [])) == Done()
        await end(tasks)

    run(script)


def test_a_peer_that_cannot_be_reached_ends_no_task_and_settles_nothing() -> None:
    async def script(nodes: dict[str, Node]) -> None:
        old = Node("a", nodes)
        old.bits_of[content(7).key] = ALL
        tasks = await running(old)
        old.migration.on_view(view(1, "gone"))
        while not old.migration.status()["blocks_to_give"]:
            await asyncio.sleep(0)
        for _ in range(50):
            await asyncio.sleep(0)
        assert old.migration.settled == 0
        assert not tasks[0].done()
        await end(tasks)

    run(script)


def test_what_several_tiers_have_is_one_listing_in_order() -> None:
    a = [Holding(b"1", 9, 1), Holding(b"3", 9, 1), Holding(b"4", 9, 4)]
    b = [Holding(b"2", 9, 2), Holding(b"3", 9, 2)]
    merged = merge_holdings([a, b], 3)
    assert merged == (Holding(b"1", 9, 1), Holding(b"2", 9, 2), Holding(b"3", 9, 3))
    assert merge_holdings([a, b], 10)[3:] == (a[2],)
    assert merge_holdings([], 5) == ()


def test_a_worker_lists_what_it_has_whole_and_partial(tmp_path: Path) -> None:
    async def script(nodes: dict[str, Node]) -> None:
        rig = Rig(tmp_path, 64 << 20)
        for ino in (2, 3, 4):
            rig.put(ino, 9 * PAGE_BYTES + 1)
        async with rig.worker() as worker:
            await fetch(worker, rig.space.namespace, 2)
            reader = await open_reader(worker, 3)
            assert len(await reader.at(0, 100)) == 100
            found = await worker.serving.holdings(b"", 10)
            while len(found) < 2:  # the record of a page is written by a thread
                await asyncio.sleep(0.01)
                found = await worker.serving.holdings(b"", 10)
            reader.close()
            assert [one.key for one in found] == sorted(rig.content(i).key for i in (2, 3))
            by_ino = {int.from_bytes(one.key[16:24], "big"): one for one in found}
            assert by_ino[2].bits == (1 << 10) - 1
            assert by_ino[3].bits & 1
            rest = await worker.serving.holdings(found[0].key, 10)
            assert rest == found[1:]

    run(script)


def test_what_comes_to_the_first_of_two_owners_goes_to_the_second() -> None:
    async def script(nodes: dict[str, Node]) -> None:
        first, second = Node("a", nodes), Node("b", nodes)
        tasks = await running(first, second)
        seen = view(3, "a", "b")
        for node in (first, second):
            node.migration.on_view(seen)
        owners = Placement(seen.members)
        mine = [ino for ino in range(2, 60) if owners.owners(ino, 0)[0].id == "a"]
        for ino in mine:
            key = content(ino).key
            first.bits_of[key] = ALL
            first.migration.came(key, SIZE, 2)
        while len(second.bits_of) < len(mine):
            await asyncio.sleep(0.01)
        assert second.bits_of == first.bits_of
        offers = [call for call in second.asked if isinstance(call, c.Offer)]
        assert all(offer.replicas == [2] * len(offer.blocks) for offer in offers)
        await end(tasks)

    run(script)


def test_what_a_silent_disk_has_is_neither_offered_nor_taken_again() -> None:
    async def script(nodes: dict[str, Node]) -> None:
        old, new = Node("a", nodes), Node("b", nodes)
        key = content(7).key
        old.bits_of[key] = new.bits_of[key] = ALL
        new.is_silent = True
        tasks = await running(old, new)
        for node in (old, new):
            node.migration.on_view(view(1, "b"))
        while len(new.asked) < 3:
            await asyncio.sleep(0)
        assert {type(call) for call in new.asked} == {c.Have}
        new.migration.offered(c.Offer("a", old.url, 1, [(key, 0)]))
        while not old.asked:
            await asyncio.sleep(0)
        for _ in range(50):
            await asyncio.sleep(0)
        assert new.brought == []
        new.is_silent = False
        await asyncio.gather(old.settled.wait(), new.settled.wait())
        assert new.brought == []
        await end(tasks)

    run(script)


def test_new_pages_that_a_silent_disk_does_not_show_reach_the_second_owner_later() -> None:
    async def script(nodes: dict[str, Node]) -> None:
        first, second = Node("a", nodes), Node("b", nodes)
        tasks = await running(first, second)
        seen = view(3, "a", "b")
        for node in (first, second):
            node.migration.on_view(seen)
        await asyncio.gather(first.settled.wait(), second.settled.wait())
        owners = Placement(seen.members)
        ino = next(ino for ino in range(2, 60) if owners.owners(ino, 0)[0].id == "a")
        key = content(ino).key
        first.is_silent, first.replicas = True, 2
        first.bits_of[key] = ALL
        first.migration.came(key, SIZE, 2)
        while not first.reported:
            await asyncio.sleep(0)
        first.is_silent = False
        while key not in second.bits_of:
            await asyncio.sleep(0.01)
        await end(tasks)

    run(script)
