"""Writes docs/consistency.md from what the adapters declare:
`.venv/bin/python scripts/consistency.py`. A test compares them.
Each sentence has an id, which a test names (`scripts/check_docs.py`)."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from connectors.capabilities import Capabilities

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "consistency.md"
HEAD: Final = """# Consistency: when a reader sees a change of its store

Made from what the adapters declare, by `.venv/bin/python scripts/consistency.py`. Each sentence has
an id, which a test names. [SEMANTICS](SEMANTICS.md) has what holds for all stores,
[stores](stores.md) how each is reached.

For all stores:

| when | what a reader gets |  |
|---|---|---|
"""
ALL: Final = (
    (
        "a name is opened, or looked up, after the sync interval",
        "The names and the bytes of then.",
        "C-interval",
    ),
    (
        "the source has a [feed](operations.md#reported-changes) that is up to date",
        "What changed, a moment after the store reported it, on every node.",
        "C-feed",
    ),
    (
        "the feed cannot be read, or may have lost reports",
        "As without a feed: the sync interval holds.",
        "C-broken-feed",
    ),
    (
        "`cachefs sync PATH` has returned",
        "The names and the bytes of then, whatever the intervals are.",
        "C-sync",
    ),
    (
        "a file is open while it is replaced",
        "The bytes of the opened version to the end, or ESTALE; never a mix.",
        "C-open",
    ),
    (
        "the store cannot be reached",
        "What is cached, and the names that are known.",
        "C-down",
    ),
)
SECONDS: Final = {10**9: "a second", 10**6: "a millisecond", 10**3: "a microsecond"}


class Store(NamedTuple):
    """A source whose adapter is opened, without a request, for what it declares."""

    heading: str
    url: str
    feeds: tuple[str, ...] = ()  # of the master, beside those that the capabilities allow


STORES: Final = (
    Store("S3", "s3://bucket", ("--push sqs:URL", "--push webhook:NAME")),
    Store("Google Cloud Storage", "gs://bucket"),
    Store("Azure Blob Storage", "az://account/container"),
    Store("HDFS", "hdfs://host:8020/path"),
    Store("Directories", "file:///tmp"),
    Store("fsspec, with versions (as fsspec+s3)", "fsspec+s3://bucket"),
    Store("fsspec, others (as fsspec+sftp)", "fsspec+sftp://host/path"),
    Store("pyarrow (arrow+...)", "arrow+file:///tmp"),
)
Row = tuple[str, str, str]


def page() -> str:
    """Returns the whole page."""
    return HEAD + _table(ALL) + "".join(_section(store) for store in STORES)


def _section(store: Store) -> str:
    head = f"\n## {store.heading}\n\n| about | it holds |  |\n|---|---|---|\n"
    return head + _table(_rows(store))


def _table(rows: Iterable[Row]) -> str:
    return "".join(f"| {what} | {answer} | `[{ident}]` |\n" for what, answer, ident in rows)


def _rows(store: Store) -> Iterator[Row]:
    declared = _declared(store.url)
    yield from _versions(declared)
    yield _feeds(store, declared)
    yield from _names(declared)


def _versions(declared: Capabilities) -> Iterator[Row]:
    from connectors.capabilities import Identity

    if declared.identity is Identity.CONTENT:
        text = "Each change of a file makes another version, also one that keeps length and mtime."
        yield "versions", text, "C-version-content"
    else:
        text = "A file is known by length and mtime: a change that keeps both is not seen."
        yield "versions", text, "C-version-time"
    if declared.refuses_other_versions:
        text = "A read names its version: the store refuses another one."
        yield "a read while the file is replaced", text, "C-refuses"
    else:
        text = "The version of the bytes is compared before any of them is used: another version "
        text += "is never read for the opened one."
        yield "a read while the file is replaced", text, "C-compares"
    exact = SECONDS.get(declared.mtime_precision_ns, "a nanosecond")
    yield "times of files", f"They are exact to {exact}.", "C-times"


def _feeds(store: Store, declared: Capabilities) -> Row:
    if store.feeds:
        flags = " or ".join(f"`{flag}`" for flag in store.feeds)
        return "a feed", f"{flags}: the store's events name what changed.", "C-feed-events"
    if declared.directory_times:
        text = "`--push poll`: names that were added, removed or replaced are seen after the next "
        text += "round. A file that is changed in place is seen after the push interval (1 hour)."
        return "a feed", text, "C-feed-times"
    return "a feed", "None: a change is seen after the sync interval.", "C-no-feed"


def _names(declared: Capabilities) -> Iterator[Row]:
    if declared.directories:
        text = "They are the store's, empty ones too if it has them."
        yield "directories", text, "C-directories"
    else:
        text = "A directory exists while a key is below it: an empty one is not shown."
        yield "directories", text, "C-no-directories"
    if declared.ordered_listings:
        text = "The store lists names in order. They are shown before the listing has ended."
        yield "an unfinished listing", text, "C-ordered"
    else:
        text = "Names are sorted on disk. They are shown once the store has listed all of them."
        yield "an unfinished listing", text, "C-unordered"
    if declared.posix_attributes:
        yield "owner, group and mode", "They are the store's.", "C-posix"
    else:
        yield "owner, group and mode", "They are the mount's.", "C-no-posix"


def _declared(url: str) -> Capabilities:
    from cachefs.core.model import UfsSpec
    from connectors.meter import Meter
    from connectors.registry import open_adapter

    options = {"anonymous": "true"} if url.startswith(("s3:", "gs:", "az:")) else {}
    adapter = open_adapter(UfsSpec(url, options), Meter())
    adapter.close()
    return adapter.capabilities


def main() -> int:
    """Writes the page. Run it after a change of what an adapter declares."""
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(page())
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
