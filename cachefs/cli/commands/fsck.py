"""`cachefs fsck`: checks that cached data is undamaged, and on the workers that own it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import click
import msgspec

from cachefs.cli import output, settings
from cachefs.cli.cluster_files import SHOWN_ID, Block, Cluster, File, blocks_of, open_cluster
from cachefs.core import cluster as c
from cachefs.core.addresses import address_of
from cachefs.core.config import Config
from cachefs.core.errors import CacheFSError, NotFound
from cachefs.core.pages import BLOCK_PAGES, split
from cachefs.core.units import format_size

FAILED: Final = 1
MISSING: Final = "missing"  # the worker's index lists it, its cache does not have it
WRONG: Final = "wrong"  # its checksum does not match
MISPLACED: Final = "misplaced"  # cached, but not by its owners


class PageFinding(msgspec.Struct, frozen=True):
    """Pages [first, end) of a file on a worker."""

    state: str
    path: str
    worker: str
    address: str
    first: int
    end: int
    cause: str = ""


class Total(msgspec.Struct):
    """The totals of a check: files and their bytes, and pages."""

    files: int = 0
    bytes: int = 0
    cached_pages: int = 0
    copies: int = 0
    verified_pages: int = 0


@click.command("fsck")
@click.argument("path")
@click.option("--no-verify", is_flag=True, help="Check only the places: read no cached bytes.")
@settings.command_options("fsck")
def command(path: str, no_verify: bool, as_json: bool, chosen: Config) -> int:
    """Check the cached data of PATH and everything known below it: each worker reads every page in
    its index and verifies the checksum. Damaged copies are dropped, and fetched again by the next
    read. Exit code 1 if any was damaged or missing, 3 if a worker did not answer.

    \b
    cachefs fsck /mnt/imagenet
    cachefs fsck cachefs://master:19998/imagenet/train.tar --no-verify
    """
    cluster, inside = open_cluster(path, chosen)
    with cluster:
        check = Check(cluster, verify=not no_verify)
        findings = check.run(inside)
        found = _print_json(check, findings) if as_json else _print(check, findings)
        incomplete = cluster.warn_of_silent()
    return FAILED if found & {MISSING, WRONG} else incomplete


class Check:
    """One run. `total` grows as it progresses."""

    def __init__(self, cluster: Cluster, *, verify: bool) -> None:
        self._cluster = cluster
        self.verifies = verify
        self.total = Total()

    @property
    def is_incomplete(self) -> bool:
        """True if a worker did not answer, or pages in its index could not be read."""
        return bool(self._cluster.silent_owning())

    def run(self, path: bytes) -> Iterator[PageFinding]:
        """Yields every finding. Raises what calling the master raises. A worker that does not
        answer is left out (`Cluster.silent`)."""
        for files in self._cluster.files(path):
            for file, bits in zip(files, self._cluster.have(files), strict=True):
                yield from self._file(file, bits)

    def _file(self, file: File, bits: dict[str, int]) -> Iterator[PageFinding]:
        self.total.files += 1
        self.total.bytes += file.inode.size
        for block in blocks_of(file.inode) if bits else ():
            counts = {worker: block.count(pages) for worker, pages in bits.items()}
            self.total.cached_pages += max(counts.values(), default=0)
            self.total.copies += sum(counts.values())
            yield from self._place(file, block, counts)
        for worker, pages in bits.items():
            if self.verifies:
                yield from self._bytes(file, worker, pages)

    def _place(self, file: File, block: Block, counts: dict[str, int]) -> Iterator[PageFinding]:
        """Yields a finding if no owner has as many pages as the fullest copy. While blocks migrate
        nothing is reported, and nothing of owners that did not answer: what they have is unknown.
        """
        owners = self._cluster.owners(file, block.number)
        most = max(counts, key=lambda worker: counts[worker], default="")
        if self._cluster.view.before or not owners or not most:
            return
        if any(owner in self._cluster.silent for owner in owners):
            return
        owner = max(owners, key=lambda worker: counts.get(worker, 0))
        if counts.get(owner, 0) < counts[most]:
            where = (
                f"its owner {owner[:SHOWN_ID]} has {counts.get(owner, 0)} of {block.pages} pages"
            )
            yield self._finding(MISPLACED, file, most, block.first, block.end, where)

    def _bytes(self, file: File, worker: str, pages: int) -> Iterator[PageFinding]:
        try:
            for first, end in runs(pages):
                for part in split(first, end, c.MAX_DATA_PAGES):
                    yield from self._pages(file, worker, *part)
        except CacheFSError as err:
            self._cluster.silent[worker] = err

    def _pages(self, file: File, worker: str, first: int, end: int) -> Iterator[PageFinding]:
        client = self._cluster.worker(worker)
        while first < end:
            try:
                found = client.call(c.Verify(file.content.key, first, end), c.Verified)
            except NotFound:
                yield self._finding(MISSING, file, worker, first, end, "not in the cache")
                return
            self.total.verified_pages += found.pages
            for page in found.wrong:
                yield self._finding(WRONG, file, worker, page, page + 1, "checksum mismatch")
            first += max(1, found.pages)

    def _finding(
        self, state: str, file: File, worker: str, first: int, end: int, cause: str
    ) -> PageFinding:
        row = self._cluster.rows[worker]
        shown = "/" + output.text_of(file.path)
        return PageFinding(state, shown, worker, address_of(row.url), first, end, cause)


def runs(bits: int) -> Iterator[tuple[int, int]]:
    """Yields the ranges [first, end) of ones in a bitmap; no range crosses a block boundary."""
    page = 0
    while bits >> page:
        page += ((bits >> page) & -(bits >> page)).bit_length() - 1
        rest = bits >> page
        length = (~rest & (rest + 1)).bit_length() - 1
        block_end = (page // BLOCK_PAGES + 1) * BLOCK_PAGES
        end = min(page + length, block_end)
        yield page, end
        page = end


def _print(check: Check, findings: Iterator[PageFinding]) -> set[str]:
    states = set()
    for finding in findings:
        states.add(finding.state)
        last = finding.end - 1
        pages = f"page {last}" if last == finding.first else f"pages {finding.first} to {last}"
        who = f"{finding.worker[:SHOWN_ID]} ({finding.address})"
        click.echo(f"{finding.state}  {finding.path}  {pages}  at {who}: {finding.cause}")
    click.echo(_summary(check, states))
    return states


def _summary(check: Check, states: set[str]) -> str:
    """Returns the last line: how much was read, and the verdict."""
    total = check.total
    files = "1 file" if total.files == 1 else f"{total.files} files"
    cached = f"{total.cached_pages} pages cached in {total.copies} copies"
    if not check.verifies:
        verdict = "no page was read" if not states else "see above"
        return f"{files} of {format_size(total.bytes)}: {cached}; {verdict}"
    read = f"{total.verified_pages} of {total.copies} copies read"
    verdict = "nothing is damaged" if total.verified_pages else "nothing was checked"
    if total.verified_pages == total.copies == 0 and not check.is_incomplete:
        verdict = "nothing is cached"
    if states:
        verdict = "see above"
    elif check.is_incomplete and total.verified_pages:
        verdict = "what was read is undamaged"
    return f"{files} of {format_size(total.bytes)}: {cached}, {read}; {verdict}"


def _print_json(check: Check, findings: Iterator[PageFinding]) -> set[str]:
    found = [msgspec.to_builtins(finding) for finding in findings]
    output.print_json({"findings": found, **msgspec.to_builtins(check.total)})
    return {finding["state"] for finding in found}
