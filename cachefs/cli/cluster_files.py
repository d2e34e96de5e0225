"""The files of a cluster, the owners of their blocks and the pages that each worker has cached.
`cachefs location` and `cachefs fsck` get them from the master and its workers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from cachefs.cli import clusters, output
from cachefs.cli.paths import find_in_cluster
from cachefs.client.http import HttpClient
from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.config import Config
from cachefs.core.errors import CacheFSError, NotFound, Unavailable, Unreachable, Unsupported
from cachefs.core.model import ContentId, Inode, Kind, NamespaceId
from cachefs.core.pages import BLOCK_PAGES, page_count
from cachefs.core.placement import Placement, View, block_count
from cachefs.core.policies import shown
from cachefs.core.units import format_duration

SHOWN_ID: Final = 8  # digits of a worker's id
ANSWERING: Final = ("serving", "draining", "drained")  # states of workers that serve requests
LOST: Final = "lost"


class File(NamedTuple):
    """A file of the namespace."""

    path: bytes  # below the namespace root
    inode: Inode
    content: ContentId
    replicas: int = 1  # owners of each block


class Block(NamedTuple):
    """One block of a file: its number, and its pages [first, end) of the file."""

    number: int
    first: int
    end: int

    def count(self, bits: int) -> int:
        """Returns how many pages of the block a bitmap of the file has."""
        return ((bits >> self.first) & ((1 << (self.end - self.first)) - 1)).bit_count()

    @property
    def pages(self) -> int:
        return self.end - self.first


def blocks_of(inode: Inode) -> list[Block]:
    """Returns all blocks of a file; the last one may be shorter."""
    pages = page_count(inode.size)
    return [
        Block(n, n * BLOCK_PAGES, min(pages, (n + 1) * BLOCK_PAGES))
        for n in range(block_count(inode.size))
    ]


class Cluster:
    """Connections to a master and its workers. Close it (a context manager)."""

    def __init__(self, master: HttpClient, chosen: Config) -> None:
        self.master = master
        self._chosen = chosen
        self._stack = contextlib.ExitStack()
        self._workers: dict[str, HttpClient] = {}
        self._stack.enter_context(master)
        self.namespace: NamespaceId = master.call(c.Greeting(), c.Greeted).namespace
        table = master.call(c.ListWorkers(), c.WorkerTable)
        self.view: View = table.view
        self.rows = {row.id: row for row in table.rows}
        self.placement = Placement(table.view.members)
        # Workers that did not answer, by id. Lost workers get no request.
        self.silent = {row.id: _lost(row) for row in table.rows if row.state == LOST}

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes every connection; idempotent."""
        self._stack.close()

    def resolve(self, path: bytes) -> Inode:
        """Returns the inode at a path. Raises NotFound."""
        found = self.master.call(m.Resolve(self.namespace, path.strip(b"/")), m.Found)
        if found.inode is None:
            raise NotFound("no such file or directory", path=shown(path))
        return found.inode

    def files(self, path: bytes) -> Iterator[list[File]]:
        """Yields the file at a path, or all files below it that the master knows, in batches."""
        inode = self.resolve(path)
        if inode.kind is Kind.FILE:
            yield self._files([(path.strip(b"/"), inode)])
            return
        if inode.kind is not Kind.DIRECTORY:
            raise Unsupported("a symbolic link has no bytes")
        cursor = b""
        while True:
            call = c.Walk(self.namespace, inode.ino, known=True, cursor=cursor)
            walked = self.master.call(call, c.Walked)
            yield self._files(walked.files)
            cursor = walked.cursor
            if not cursor:
                return

    def _files(self, found: Sequence[tuple[bytes, Inode]]) -> list[File]:
        """Returns the regular files among `found`, with the replica count of their policies."""
        known = [(path, inode) for path, inode in found if inode.kind is Kind.FILE]
        files: list[File] = []
        for start in range(0, len(known), c.BATCH_LIMIT):
            part = known[start : start + c.BATCH_LIMIT]
            call = c.Locate(self.namespace, [inode.ino for _, inode in part])
            places = self.master.call(call, c.Located).places
            for (path, inode), place in zip(part, places, strict=True):
                replicas = place.origin.rule.owners if place.origin is not None else 1
                files.append(File(path, inode, ContentId.of(self.namespace, inode), replicas))
        return files

    def owners(self, file: File, block: int) -> list[str]:
        """Returns the ids of a block's owners, the primary owner first; empty if no worker owns
        data."""
        owners = self.placement.owners(file.inode.ino, block, file.replicas)
        return [one.id for one in owners]

    def have(self, files: Sequence[File]) -> list[dict[str, int]]:
        """Returns for each file the bitmaps of its cached pages, by worker id. A worker that does
        not answer is left out, and is in `silent` from then on; so is one that answers in part,
        after this answer."""
        found: list[dict[str, int]] = [{} for _ in files]
        for start in range(0, len(files), c.BATCH_LIMIT):
            part = files[start : start + c.BATCH_LIMIT]
            for worker in self.answering():
                for n, data in enumerate(self._have(worker, part)):
                    if any(data):
                        found[start + n][worker] = int.from_bytes(data, "little")
        return found

    def answering(self) -> list[str]:
        """Returns the ids of the workers that serve requests and have not failed to answer."""
        return [
            row.id
            for row in self.rows.values()
            if row.state in ANSWERING and row.id not in self.silent
        ]

    def _have(self, worker: str, files: Sequence[File]) -> list[bytes]:
        try:
            call = c.Have([file.content.key for file in files])
            had = self.worker(worker).call(call, c.Had)
        except CacheFSError as err:
            self.silent[worker] = err
            return []
        if had.incomplete:
            self.silent[worker] = Unavailable(c.DISK_SILENT)
        return had.pages

    def warn_of_silent(self) -> int:
        """Prints a line for each worker that did not answer, and returns the command's exit code.
        Workers of weight 0 (of mounts) are left out: other machines need not reach them."""
        return output.warn_no_answer(self.silent_owning())

    def silent_owning(self) -> list[str]:
        """Returns `ID: why` for each worker that owns data and did not answer."""
        found = self.silent.items()
        return [f"{id}: {err.one_line()}" for id, err in found if self.rows[id].weight > 0]

    def worker(self, id: str) -> HttpClient:
        """Returns a client of a worker. Raises as `HttpClient`."""
        if id not in self._workers:
            client = clusters.connect_worker(self.rows[id].url, self._chosen, self.master.url)
            self._workers[id] = self._stack.enter_context(client)
        return self._workers[id]


def _lost(row: c.WorkerRow) -> CacheFSError:
    remedy = "`cachefs workers remove` forgets one whose process has ended"
    seen = format_duration(round(row.seen_s, 1))
    return Unreachable(f"it is lost, last seen {seen} ago", remedy=remedy)


def open_cluster(path: str, chosen: Config) -> tuple[Cluster, bytes]:
    """Returns the cluster of a path, and the path in its namespace. Raises what
    `paths.find_in_cluster` and the master's replies raise."""
    url, inside, chosen = find_in_cluster(path, chosen)
    return Cluster(HttpClient(url, clusters.security(chosen, url)), chosen), inside
