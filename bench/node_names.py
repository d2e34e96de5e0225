"""A node's side of a master's namespace: a known name or place costs < 5 us, one that it requests
from the master (in batches, 64 at a time) < 50 us of CPU; < 600 bytes for each name that is kept.

The node runs in this process, the master in another one, over loopback. Names are computed (80,000
files, listed before the clock starts).
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from bench import machine
from bench.harness import Lab, main, middle
from bench.master_process import PATH, MasterProcess, master_process
from bench.mounts import BenchFailed
from bench.report import Result, Table
from cachefs.core.messages import LIST_LIMIT, Found
from cachefs.core.model import ROOT_INO, Origin
from worker.membership.master_client import MasterClient
from worker.names.namespace import RemoteNamespace

FILES = 1000  # per directory
AT_ONCE = 64
SEED = 20261121

T = TypeVar("T")
Name = tuple[int, bytes]


def run(lab: Lab, result: Result) -> None:
    with master_process(lab.size(80, 10), FILES) as master:
        asyncio.run(measure(lab, master, result))


async def measure(lab: Lab, master: MasterProcess, result: Result) -> None:
    client, count = MasterClient(f"127.0.0.1:{master.port}"), lab.size(80, 10)
    try:
        await memory(client, count, result)
        asked = [await over_the_wire(client, master, count) for _ in range(lab.runs)]
        known = [await from_the_cache(client, count) for _ in range(lab.runs)]
    finally:
        await client.close()
    table = result.table("one node", "question", "answers/s", "us of CPU: node", "master")
    rows(table, "a name, from the cache", [names for names, _ in known])
    rows(table, "a file's place, from the cache", [places for _, places in known])
    rows(table, f"a name, {AT_ONCE} at a time", [names for names, _ in asked])
    rows(table, f"a file's place, {AT_ONCE} at a time", [places for _, places in asked])
    cpu_us = middle(one.node_us for pair in known for one in pair)
    result.bar("CPU for a known name or place", cpu_us, 5, "us")
    cpu_us = middle(one.node_us for pair in asked for one in pair)
    result.bar("CPU of the node for one that is asked for", cpu_us, 50, "us")


class Timed:
    """A pass over `count` requests."""

    def __init__(self, count: int, wall_s: float, node_s: float, master_s: float) -> None:
        self.per_s = count / wall_s
        self.node_us = node_s / count * 1e6
        self.master_us = master_s / count * 1e6


def rows(table: Table, what: str, passes: Sequence[Timed]) -> None:
    rate = middle(one.per_s for one in passes)
    best = min(passes, key=lambda one: abs(one.per_s - rate))
    table.add(what, best.per_s, best.node_us, best.master_us)


@asynccontextmanager
async def opened(
    client: MasterClient, count: int
) -> AsyncIterator[tuple[RemoteNamespace, list[int]]]:
    """Opens a node that knows only the directories."""
    node = await RemoteNamespace.open(client)
    try:
        top = ino_of(await node.lookup(ROOT_INO, PATH.strip(b"/")))
        found = [await node.lookup(top, b"d%06d" % n) for n in range(count)]
        yield node, [ino_of(one) for one in found]
    finally:
        await node.close()


def ino_of(found: Found) -> int:
    if found.inode is None:
        raise BenchFailed("a name is not there")
    return found.inode.ino


def shuffled(directories: list[int]) -> list[Name]:
    """Returns every file's name, in the order of a training epoch."""
    names = [(ino, b"f%06d" % n) for ino in directories for n in range(FILES)]
    random.Random(SEED).shuffle(names)
    return names


async def memory(client: MasterClient, count: int, result: Result) -> None:
    """Measures the memory of names that arrived in listings, with the kept listings."""
    async with opened(client, count) as (node, directories):
        before = machine.rss_anon_bytes(os.getpid())
        for ino in directories:
            await node.list_dir(ino, b"", LIST_LIMIT)
        grown = machine.rss_anon_bytes(os.getpid()) - before
    result.bar("memory for a name", grown / count / FILES, 600, "bytes")


async def over_the_wire(
    client: MasterClient, master: MasterProcess, count: int
) -> tuple[Timed, Timed]:
    """Times lookups of unknown names, and then of places, `AT_ONCE` at a time."""
    async with opened(client, count) as (node, directories):
        inos: list[int] = []

        async def look(name: Name) -> None:
            inos.append(ino_of(await node.lookup(*name)))

        looked = await timed(master, shuffled(directories), look)
    async with opened(client, count) as (node, _):  # knows no names to derive places from
        return looked, await timed(master, inos, node.locate)


async def from_the_cache(client: MasterClient, count: int) -> tuple[Timed, Timed]:
    async with opened(client, count) as (node, directories):
        for ino in directories:
            page = await node.list_dir(ino, b"", LIST_LIMIT)
            await node.locate(ino_of(await node.lookup(ino, page.entries[0].name)))
        found: list[Found | None] = []
        looked = known(shuffled(directories), lambda name: found.append(node.lookup_nowait(*name)))
        inos = [ino_of(one) for one in found if one is not None]
        places: list[Origin | None] = []
        located = known(inos, lambda ino: places.append(node.locate_nowait(ino)))
    if len(inos) < len(found) or None in places:
        raise BenchFailed("the node does not have the names that it received")
    return looked, located


def known(items: Sequence[T], ask: Callable[[T], None]) -> Timed:
    began, cpu_s = time.perf_counter(), time.process_time()
    for item in items:
        ask(item)
    wall_s = time.perf_counter() - began
    return Timed(len(items), wall_s, time.process_time() - cpu_s, 0.0)


async def timed(
    master: MasterProcess, items: Sequence[T], ask: Callable[[T], Awaitable[object]]
) -> Timed:
    left = iter(items)

    async def requester() -> None:
        for item in left:
            await ask(item)

    began, cpu_s = time.perf_counter(), time.process_time()
    master_s = machine.cpu_s([master.pid])
    await asyncio.gather(*(requester() for _ in range(AT_ONCE)))
    wall_s = time.perf_counter() - began
    master_s = machine.cpu_s([master.pid]) - master_s
    return Timed(len(items), wall_s, time.process_time() - cpu_s, master_s)


if __name__ == "__main__":
    main(run)
