"""The files of a cluster, who owns their blocks and which workers have which pages of them: what
`cachefs location` and `cachefs fsck` ask of a master and its workers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from cachefs.cli import clusters, output, settings
from cachefs.cli.paths import find_in_cluster
from cachefs.client.http import HttpClient
from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.config import Config
from cachefs.core.errors import CacheFSError, NotFound, Unreachable, Unsupported
from cachefs.core.model import PAGE_BYTES, ContentId, Inode, Kind, NamespaceId
from cachefs.core.placement import BLOCK_BYTES, Placement, View, block_count
from cachefs.core.units import format_duration

BLOCK_PAGES: Final = BLOCK_BYTES // PAGE_BYTES
SHOWN_ID: Final = 8  # digits of a worker's id
ANSWERING: Final = ("serving", "draining", "drained")  # states of workers that can be asked
LOST: Final = "lost"


class File(NamedTuple):
    """A file of the namespace."""

    path: bytes  # below the namespace root
    inode: Inode
    content: ContentId
    replicas: int = 1  # how many own each block


class Block(NamedTuple):
    """One block of a file: its number, and its pages [first, end) of the file."""

    number: int
    first: int
    end: int

    def count(self, bits: int) -> int:
        """How many of its pages a bitmap of the file has."""
        return ((bits >> self.first) & ((1 << (self.end - self.first)) - 1)).bit_count()

    @property
    def pages(self) -> int:
        return self.end - self.first


def blocks_of(inode: Inode) -> list[Block]:
    """All of a file, the last one as short as it is."""
    pages = -(-inode.size // PAGE_BYTES)
    return [
        Block(n, n * BLOCK_PAGES, min(pages, (n + 1) * BLOCK_PAGES))
        for n in range(block_count(inode.size))
    ]


class Cluster:
    """A master and its workers, asked from here. Close it (a context manager)."""

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
        # Workers that did not answer, by id; a lost one is not asked.
        self.silent = {row.id: _lost(row) for row in table.rows if row.state == LOST}

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends every connection; idempotent."""
        self._stack.close()

    def resolve(self, path: bytes) -> Inode:
        """Raises NotFound."""
        found = self.master.call(m.Resolve(self.namespace, path.strip(b"/")), m.Found)
        if found.inode is None:
            shown = "/" + path.strip(b"/").decode("utf-8", "backslashreplace")
            raise NotFound("no such file or directory", path=shown)
        return found.inode

    def files(self, path: bytes) -> Iterator[list[File]]:
        """The file at a path, or all below it that the master knows, in batches."""
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
        """Those that are files, with what policies say of how many own them."""
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
        """The ids of who owns a block, the first first; none where nobody owns anything."""
        owners = self.placement.owners(file.inode.ino, block, file.replicas)
        return [one.id for one in owners]

    def have(self, files: Sequence[File]) -> list[dict[str, int]]:
        """For each file the bitmaps of its pages, by the id of the worker that has some. Who does
        not answer is left out, and in `silent` from then on."""
        found: list[dict[str, int]] = [{} for _ in files]
        for start in range(0, len(files), c.BATCH_LIMIT):
            part = files[start : start + c.BATCH_LIMIT]
            for worker in self.answering():
                for n, data in enumerate(self._have(worker, part)):
                    if any(data):
                        found[start + n][worker] = int.from_bytes(data, "little")
        return found

    def answering(self) -> list[str]:
        """The ids of those that can be asked."""
        return [
            row.id
            for row in self.rows.values()
            if row.state in ANSWERING and row.id not in self.silent
        ]

    def _have(self, worker: str, files: Sequence[File]) -> list[bytes]:
        try:
            call = c.Have([file.content.key for file in files])
            return self.worker(worker).call(call, c.Had).pages
        except CacheFSError as err:
            self.silent[worker] = err
            return []

    def warn_of_silent(self) -> int:
        """Prints a line for the workers that did not answer; returns the command's exit code. The
        workers of mounts alone are left out: other machines need not reach them."""
        return output.warn_of_silent(self.silent_owning())

    def silent_owning(self) -> list[str]:
        """Returns `ID: why` of each worker that owns data and did not answer."""
        found = self.silent.items()
        return [f"{id}: {err.one_line()}" for id, err in found if self.rows[id].weight > 0]

    def worker(self, id: str) -> HttpClient:
        """A client of a worker. Raises as `HttpClient`."""
        if id not in self._workers:
            client = clusters.connect_worker(self.rows[id].url, self._chosen, self.master.url)
            self._workers[id] = self._stack.enter_context(client)
        return self._workers[id]


def _lost(row: c.WorkerRow) -> CacheFSError:
    remedy = "`cachefs workers remove` forgets one whose process has ended"
    seen = format_duration(round(row.seen_s, 1))
    return Unreachable(f"it is lost, last seen {seen} ago", remedy=remedy)


def open_cluster(
    path: str, flags: dict[str, Any], config_file: str | None
) -> tuple[Cluster, bytes]:
    """The cluster that a path is in, and the path in its namespace. Raises what
    `paths.find_in_cluster` and asking the master raise."""
    chosen = settings.load_settings(flags, config_file)
    url, inside = find_in_cluster(path, chosen, settings.state_home(chosen))
    return Cluster(HttpClient(url, clusters.security(chosen, url)), chosen), inside
