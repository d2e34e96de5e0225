"""A worker on a tier of its own, an origin in memory and a namespace of a test's making."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from cachefs.core.errors import NotFound, Stale
from cachefs.core.messages import COPY_BYTES, Ensured
from cachefs.core.model import ContentId, NamespaceId, Origin
from cachefs.core.policies import NO_RULE
from cachefs.core.services import Permission
from cachefs.core.tiers import TierSpec
from tests.services.memory import MemoryConnector
from worker.cache.cache import Cache
from worker.cache.grants import Grant
from worker.cache.tier import Tier
from worker.fill.source import Source
from worker.runtime.clocks import Clocks
from worker.runtime.memory import MemoryBudget, budget
from worker.runtime.process_limits import available_memory
from worker.tier.config import WorkerConfig
from worker.tier.contents import IsOwned, NodeParts
from worker.tier.scrub import Scrubber

NAMESPACE = NamespaceId(b"n" * 16)
MIB = 1 << 20
LIMIT_S = 60.0
BLOCK_BYTES = 16 * MIB


class Namespace:
    """The part of a `MetadataService` that a worker uses. `protected`: names that may not go."""

    namespace = NAMESPACE

    def __init__(self) -> None:
        self.origins: dict[int, Origin] = {}
        self.changed: list[int] = []
        self.protected: set[str] = set()
        self.asked: list[list[str]] = []
        self.answers = True
        self.valid_for_s = 10.0

    async def locate(self, ino: int) -> Origin:
        return self.locate_nowait(ino)

    def locate_nowait(self, ino: int) -> Origin:
        if ino not in self.origins:
            raise Stale(f"inode {ino} is gone")
        return self.origins[ino]

    async def report_changed(self, ino: int) -> None:
        self.changed.append(ino)

    async def permit_eviction(self, contents: Sequence[ContentId]) -> Permission:
        names = [content.name for content in contents]
        self.asked.append(names)
        if not self.answers:
            raise NotFound("the master does not answer")
        return Permission(frozenset(names) - self.protected, self.valid_for_s)


@functools.cache
def _block() -> bytes:
    return random.Random(0).randbytes(BLOCK_BYTES)


def some_bytes(rng: random.Random, size: int) -> bytes:
    """Returns `size` random bytes. Small contents are parts of one block that is made once: two of
    them have the same bytes at the same place only if they start at the same place of the block."""
    if size > BLOCK_BYTES // 2:
        return rng.randbytes(size)
    start = rng.randrange(BLOCK_BYTES - size)
    return _block()[start : start + size]


class Rig:
    """One tier directory over the life of several caches. `wall_s` is their wall clock."""

    def __init__(self, directory: Path, limit_bytes: int, seed: int = 0, **config: Any) -> None:
        self.config = WorkerConfig(
            str(directory / "tier"), limit_bytes, **{"origin_deadline_s": 5.0, **config}
        )
        self.tier = directory / "tier"
        self.origin = MemoryConnector()
        self.space = Namespace()
        self.random = random.Random(seed)
        self.data: dict[int, bytes] = {}
        self.wall_s = 1_700_000_000.0
        self.suspended_s = 0.0
        self.attached = True
        self.rule = NO_RULE  # of files that are put from now on

    def put(self, ino: int, data: bytes | int) -> int:
        """A file at the origin, of these bytes or of so many random ones; the namespace knows
        it."""
        content = some_bytes(self.random, data) if isinstance(data, int) else data
        path = b"dir/%d" % ino
        found = self.origin.put(path, content)
        id = ContentId(NAMESPACE, ino, 0, self.random.getrandbits(64))
        self.space.origins[ino] = Origin(
            id, "u", path, found.etag, found.size, found.mtime_ns, self.rule
        )
        self.data[ino] = content
        return ino

    def content(self, ino: int) -> ContentId:
        return self.space.origins[ino].content

    def name(self, ino: int) -> str:
        return self.content(ino).name

    def published(self) -> set[str]:
        return set(os.listdir(self.tier / "pub"))

    def disk_bytes(self) -> int:
        """What the tier takes on disk, as `du` counts it, without directories."""
        seen: dict[int, int] = {}
        for folder, _, names in os.walk(self.tier):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    info = os.lstat(os.path.join(folder, name))
                    seen[info.st_ino] = info.st_blocks * 512
        return sum(seen.values())

    def _service(self, namespace: NamespaceId) -> Any:
        if namespace != NAMESPACE or not self.attached:
            raise NotFound("no such namespace here")
        return self.space

    @contextlib.asynccontextmanager
    async def worker(
        self,
        source: Source | None = None,
        is_owned: IsOwned | None = None,
        **changes: Any,
    ) -> AsyncIterator[Cache]:
        config = dataclasses.replace(self.config, **changes)
        clocks = Clocks(
            lasting=lambda: time.monotonic() + self.suspended_s,
            wall=lambda: self.wall_s,
            jitter=lambda: 0.01,
        )
        shared = None
        if is_owned is not None:
            shared = NodeParts(MemoryBudget(budget(0, available_memory())), is_owned)
        worker = await Cache.start(
            config,
            [spec_of(config)],
            self._service,
            lambda ns, key: self.origin,
            clocks,
            source,
            shared,
        )
        await asyncio.wait_for(only(worker)._space.order_loaded.wait(), LIMIT_S)
        try:
            yield worker
        finally:
            await worker.close()


def spec_of(config: WorkerConfig) -> TierSpec:
    """Returns the one tier of a cache: on whatever the directory is, without watermarks."""
    scrub = config.scrub_bytes_per_s
    return TierSpec("ssd", config.cache_dir, config.limit_bytes, 1.0, 1.0, scrub)


def scrubber_of(tier: Tier, bytes_per_s: int) -> Scrubber:
    """Returns another scrubber of a tier."""
    return Scrubber(tier.context, tier.disk, tier.contents, tier._catalog, bytes_per_s)


def only(cache: Cache) -> Tier:
    """Returns the tier of a cache that has one."""
    (tier,) = cache._tiers.running
    return tier


def run(script: Awaitable[None], limit_s: float = LIMIT_S) -> None:
    """Runs one test's coroutine, bounded; no descriptor may be left behind."""

    async def bounded() -> None:
        await asyncio.wait_for(script, limit_s)

    before = descriptors()
    asyncio.run(bounded())
    for thread in threading.enumerate():
        if thread.name == "name-lookup":  # closes a connection once its lookup has ended
            thread.join(limit_s)
    left = sorted(descriptors() - before)
    assert not left, f"descriptors were left open: {left}"


def descriptors() -> set[str]:
    """What this process has open."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}")
    return found


async def ensure(
    worker: Cache, handle: int, offset: int, size: int, *, takes_bytes: bool = True
) -> tuple[Ensured, int | None]:
    asked = worker.ensure(handle, offset, size, takes_bytes=takes_bytes)
    return await asyncio.wait_for(asked, LIMIT_S)


class Reader:
    """Reads an open file as the FUSE client does, by grants."""

    def __init__(self, worker: Cache, grant: Grant) -> None:
        self.worker = worker
        self.grant = grant
        self.segments = 0
        self.copies = 0

    async def at(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes at `offset`, as far as the file goes."""
        found = bytearray()
        end = min(offset + size, self.grant.size)
        while offset < end:
            found += (part := await self._part(offset, end - offset))
            offset += len(part)
        return bytes(found)

    async def _part(self, offset: int, size: int) -> bytes:
        if self.grant.complete:
            assert self.grant.fd is not None
            return os.pread(self.grant.fd, size, offset)
        ensured, fd = await ensure(self.worker, self.grant.handle, offset, size)
        assert ensured.start == offset
        assert ensured.end > offset
        size = min(size, ensured.end - offset)
        if ensured.data:
            assert fd is None
            assert len(ensured.data) == ensured.end - ensured.start <= COPY_BYTES
            self.copies += 1
            return ensured.data[:size]
        if fd is None:
            assert not ensured.segment
            assert self.grant.fd is not None
            return _pread(self.grant.fd, size, offset)
        try:
            self.segments += 1
            return _pread(fd, size, offset - ensured.base)
        finally:
            os.close(fd)

    def close(self) -> None:
        if self.grant.fd is not None:
            os.close(self.grant.fd)
        self.worker.release(self.grant.handle)


def _pread(fd: int, size: int, offset: int) -> bytes:
    data = os.pread(fd, size, offset)
    assert len(data) == size
    return data


async def open_reader(worker: Cache, ino: int) -> Reader:
    return Reader(worker, await asyncio.wait_for(worker.open(NAMESPACE, ino), LIMIT_S))


async def read(worker: Cache, ino: int, step: int = 128 << 10) -> bytes:
    """A whole file, from the beginning to the end."""
    reader = await open_reader(worker, ino)
    try:
        parts = [
            await reader.at(offset, step) for offset in range(0, max(1, reader.grant.size), step)
        ]
    finally:
        reader.close()
    return b"".join(parts)


async def recorded(worker: Cache) -> None:
    """Waits until the index has what was read: until then it is in use, and is not evicted."""
    await until(lambda: not len(only(worker)._catalog))


async def until(condition: Callable[[], bool]) -> None:
    """Waits, bounded, for something that threads bring about."""
    deadline = asyncio.get_running_loop().time() + LIMIT_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it never happened"
        await asyncio.sleep(0.002)
