"""The admin API's handlers for cached files: usage, free, locations and checks.

For each batch of files that the master knows, a handler requests the cached pages from all workers.
Its reply names the workers that did not reply in time, and leaves out their pages.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from cachefs.core import admin as a
from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core import pages
from cachefs.core.access import permit
from cachefs.core.errors import CacheFSError, InUse, NotFound, ProtocolError, Unsupported
from cachefs.core.model import ContentId, Inode, Kind
from cachefs.core.pages import BLOCK_PAGES
from cachefs.core.placement import Placement, block_count
from cachefs.core.policies import Rule, shown
from master.server.admin.at import At, position

ANSWERING: Final = ("serving", "draining", "drained")  # states of workers that receive requests
LOST: Final = "lost"
WORKER_S: Final = 10.0  # the timeout of a worker's reply
GO_ON_S: Final = 10.0  # then the reply has the sum so far and a `next`
AT_ONCE: Final = 32  # requests in flight to workers
MOST_BLOCKS: Final = 1 << 16  # of a reply (16 TiB); of further files it has the cached ones
BLOCKS_AT_ONCE: Final = 500

T = TypeVar("T", bound=m.Message)


class File(NamedTuple):
    path: bytes
    inode: Inode
    content: ContentId


class FileBatch(NamedTuple):
    """A batch of files. `next` is None in the last one. `unlisted`: as in `Walked`."""

    files: list[File]
    next: str | None
    unlisted: int = 0


class Asked:
    """The workers during one admin request. `silent`: causes by id of lost workers and of those
    that did not reply; they receive no further request."""

    def __init__(self, at: At) -> None:
        """Raises ProtocolError if this server cannot reach workers."""
        if at.backend.peers is None:
            raise ProtocolError("workers cannot be asked from here")
        self._peers = at.backend.peers
        self._hides_addresses = bool(at.caller.prefix)
        self._rows = {row.id: row for row in at.backend.workers.rows()}
        self._turns = asyncio.Semaphore(AT_ONCE)
        self.silent = {id: "it is lost" for id, row in self._rows.items() if row.state == LOST}

    async def have(self, files: Sequence[File]) -> list[dict[str, int]]:
        """Returns, for each file, the bitmaps of its cached pages by worker id."""
        found: list[dict[str, int]] = [{} for _ in files]
        for worker, had in await self._all(c.Have([one.content.key for one in files]), c.Had):
            if had.incomplete:
                self.silent[worker] = c.DISK_SILENT
            for n, data in enumerate(had.pages[: len(files)]):
                if any(data):
                    found[n][worker] = int.from_bytes(data, "little")
        return found

    async def drop(self, files: Sequence[File]) -> list[c.Dropped]:
        answers = await self._all(c.Drop([one.content.key for one in files]), c.Dropped)
        return [dropped for _, dropped in answers]

    async def _all(self, call: c.Have | c.Drop, kind: type[T]) -> list[tuple[str, T]]:
        rows = self._rows.items()
        ids = [id for id, row in rows if row.state in ANSWERING and id not in self.silent]
        answers = await asyncio.gather(*(self._one(id, call, kind) for id in ids))
        return [(id, one) for id, one in zip(ids, answers, strict=True) if one is not None]

    async def _one(self, worker: str, call: c.Have | c.Drop, kind: type[T]) -> T | None:
        try:
            async with self._turns, asyncio.timeout(WORKER_S):
                answer = await self._peers.ask(self._rows[worker].url, call)
            if isinstance(answer, m.Failure):
                raise m.error_of(answer)
            if not isinstance(answer, kind):
                raise ProtocolError(f"answered {type(answer).__name__}")
        except TimeoutError:
            self.silent[worker] = f"no answer within {WORKER_S:g} s"
        except CacheFSError as err:
            self.silent[worker] = err.one_line()
        else:
            return answer
        return None

    def silent_owning(self) -> list[str]:
        """Returns the silent workers that own blocks, with the causes. Workers of weight 0 are left
        out: only mounts on their own node need them. A caller whose token has a path gets no
        cause, which may contain a worker's address."""
        return [
            f"{id}: {'it does not answer' if self._hides_addresses else why}"
            for id, why in self.silent.items()
            if self._rows[id].weight > 0
        ]


async def _batch(at: At, path: bytes, next: str | None, limit: int) -> FileBatch:
    """Returns the next batch. Raises NotFound, Unsupported, or PositionGone for an old `next`."""
    found = (await at.ask(m.Resolve(at.namespace, path), m.Found)).inode
    if found is None:
        raise NotFound("no such file or directory", path=shown(path))
    if found.kind is Kind.SYMLINK:
        raise Unsupported("a symbolic link has no bytes", path=shown(path))
    call = c.Walk(at.namespace, found.ino, True, position(next), limit)
    walked = await at.ask(call, c.Walked)
    files = [
        File(name, inode, ContentId.of(at.namespace, inode))
        for name, inode in walked.files
        if inode.kind is Kind.FILE
    ]
    return FileBatch(files, walked.cursor.hex() or None, walked.unlisted)


async def _batches(at: At, path: bytes, next: str | None) -> AsyncIterator[FileBatch]:
    """Yields batches, each small enough for one request to a worker, for up to `GO_ON_S`."""
    until = time.monotonic() + GO_ON_S
    while True:
        batch = await _batch(at, path, next, a.MAX_LIMIT)
        yield batch
        next = batch.next
        if next is None or time.monotonic() > until:
            return


async def show_usage(at: At) -> a.Usage:
    path = a.bytes_of(at.query.path)
    asked, files, size_bytes, cached_bytes = Asked(at), 0, 0, 0
    async for batch in _batches(at, path, at.query.next):
        for file, bitmaps in zip(batch.files, await asked.have(batch.files), strict=True):
            files += 1
            size_bytes += file.inode.size
            cached_bytes += pages.cached_bytes(file.inode.size, bitmaps.values())
        next, unlisted = batch.next, batch.unlisted
    return a.Usage(
        a.text_of(path), files, size_bytes, cached_bytes, asked.silent_owning(), next, unlisted
    )


async def free(at: At) -> a.FreedBytes:
    """Frees unpinned files on every worker that replies. Raises InUse for a pinned path."""
    body: a.FreeRequest = at.body
    path = a.bytes_of(body.path)
    permit(at.caller, m.Free(at.namespace, path))
    policy = await at.ask(m.GetPolicies(at.namespace, path), m.PoliciesAt)
    if policy.policy.pin:
        remedy = "unpin it first: cachefs unpin PATH"
        raise InUse(f"pinned by {policy.where['pin']}", path=shown(path), remedy=remedy)
    asked, files, size_bytes, busy = Asked(at), 0, 0, 0
    async for batch in _batches(at, path, body.next):
        for dropped in await asked.drop(await _not_pinned(at, batch.files)):
            files, size_bytes = files + dropped.files, size_bytes + dropped.bytes
            busy += dropped.busy_files
        next = batch.next
    return a.FreedBytes(files, size_bytes, busy, asked.silent_owning(), next)


async def _not_pinned(at: At, files: list[File]) -> list[File]:
    """Returns the files that are not pinned by a path below."""
    both = zip(files, await _rules(at, files), strict=True)
    return [file for file, rule in both if not rule.pinned]


async def _rules(at: At, files: list[File]) -> list[Rule]:
    """Returns the rule of each file."""
    call = c.RulesOf(at.namespace, [file.content.key for file in files])
    answer = await at.ask(call, c.Rules)
    return [answer.rules[place] for place in answer.places]


async def list_locations(at: At) -> a.Locations:
    """Returns the locations of files. A caller whose token has a path also gets worker ids, for the
    files that it may see."""
    asked = Asked(at)
    batch, items = await _located(at, asked, MOST_BLOCKS)
    view = at.backend.workers.view
    silent = asked.silent_owning()
    return a.Locations(items, view.epoch, bool(view.before), silent, batch.next)


async def list_checks(at: At) -> a.Checks:
    await at.ask(c.ListWorkers(), c.WorkerTable)
    asked = Asked(at)
    batch, items = await _located(at, asked, 0)  # a block that is cached nowhere is not misplaced
    blocks = [(file, block) for file in items for block in file.blocks]
    wrong: list[a.Misplaced] = []
    if not at.backend.workers.view.before:  # while blocks move, no block counts as misplaced
        wrong = [one for file, block in blocks if (one := _misplaced(file, block)) is not None]
    counts = [[one.pages for one in block.cached] for _, block in blocks]
    return a.Checks(
        wrong,
        len(items),
        sum(file.size_bytes for file in items),
        sum(max(pages, default=0) for pages in counts),
        sum(map(sum, counts)),
        asked.silent_owning(),
        batch.next,
    )


def _misplaced(file: a.FileAt, block: a.BlockAt) -> a.Misplaced | None:
    """Returns the block if another worker has more of its pages than each owner, else None."""
    counts = {one.worker: one.pages for one in block.cached}
    if not counts or not block.owners:
        return None
    most = max(counts, key=lambda worker: counts[worker])
    owner = max(block.owners, key=lambda worker: counts.get(worker, 0))
    owned = counts.get(owner, 0)
    if owned >= counts[most]:
        return None
    return a.Misplaced(file.path, block.block, most, counts[most], owner, owned)


async def _located(at: At, asked: Asked, most: int) -> tuple[FileBatch, list[a.FileAt]]:
    """Returns a batch of files with all of their blocks; once these are more than `most`, with
    those that are cached."""
    batch = await _batch(at, a.bytes_of(at.query.path), at.query.next, at.query.limit)
    placement = Placement(at.backend.workers.view.members)
    rules = await _rules(at, batch.files)
    items: list[a.FileAt] = []
    for file, rule, bitmaps in zip(batch.files, rules, await asked.have(batch.files), strict=True):
        items.append(await _file_at(file, rule, bitmaps, placement, most))
        most -= len(items[-1].blocks)
    return batch, items


async def _file_at(
    file: File, rule: Rule, bitmaps: dict[str, int], placement: Placement, most: int
) -> a.FileAt:
    """Returns a file with all of its blocks, if these are at most `most`, else with those that are
    cached: a store may report a file of any size. Lets other requests have their turns."""
    size_bytes = file.inode.size
    blocks = []
    count, block_end = pages.page_count(size_bytes), block_count(size_bytes)
    has_all = block_end <= most
    if not has_all:
        last = max(map(int.bit_length, bitmaps.values()), default=0)
        block_end = min(block_end, -(-last // BLOCK_PAGES))
    bits_of = {id: _in_blocks(bits) for id, bits in bitmaps.items()}
    for number in range(block_end):
        if not number % BLOCKS_AT_ONCE:
            await asyncio.sleep(0)
        first, end = number * BLOCK_PAGES, min(count, (number + 1) * BLOCK_PAGES)
        counts = {id: min(end - first, bits(number)) for id, bits in bits_of.items()}
        cached = [a.CachedAt(id, count) for id, count in sorted(counts.items()) if count]
        if not (has_all or cached):
            continue
        owners = placement.owners(file.inode.ino, number, rule.owners)
        length = pages.range_bytes(size_bytes, first, end)
        ids = [owner.id for owner in owners]
        blocks.append(a.BlockAt(number, length, end - first, ids, cached))
    return a.FileAt(a.text_of(file.path), size_bytes, blocks)


def _in_blocks(bitmap: int) -> Callable[[int], int]:
    """Returns a function from a block's number to its count of set bits."""
    data, step = bitmap.to_bytes(-(-bitmap.bit_length() // 8), "little"), BLOCK_PAGES // 8
    return lambda n: int.from_bytes(data[n * step : (n + 1) * step], "little").bit_count()
