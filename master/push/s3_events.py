"""The events of S3 servers, as AWS, MinIO and versitygw send them. Pure.

Format: "Event message structure" of the Amazon S3 user guide. Events arrive twice and out of order.
So an event only says that an object may be another one now: what happened to it, its size and its
etag are not read.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterable, Iterator

import msgspec

from connectors import keys


class Bucket(msgspec.Struct, frozen=True):
    name: str


class ChangedObject(msgspec.Struct, frozen=True):
    key: str


class Subject(msgspec.Struct, frozen=True):
    """The object that an event is about."""

    bucket: Bucket
    object: ChangedObject


class Record(msgspec.Struct, frozen=True):
    """One event. A record without `s3` is about no object."""

    s3: Subject | None = None


class Notification(msgspec.Struct, frozen=True):
    """A message with events. That of a test has no record."""

    records: list[Record] = msgspec.field(default_factory=list, name="Records")


def objects(notification: Notification) -> list[tuple[str, str]]:
    """Returns (bucket, key) of the events."""
    subjects = [record.s3 for record in notification.records if record.s3 is not None]
    return [(subject.bucket.name, subject.object.key) for subject in subjects]


def paths_below(url: str, objects: Iterable[tuple[str, str]]) -> list[bytes]:
    """Returns the paths, below the source `s3://bucket/prefix`, whose objects may have changed;
    each once, in the order of the events. Keys that cannot be names are left out. The URL is as an
    operator, or a Dataset, wrote it: perhaps with a "/" at its end."""
    bucket, _, prefix = url.removeprefix("s3://").rstrip("/").partition("/")
    head = f"{prefix}/" if prefix else ""
    found = dict.fromkeys(
        key.removeprefix(head).encode("utf-8", "surrogateescape")
        for its_bucket, written in objects
        if its_bucket == bucket
        for key in _keys(written)
        if key.startswith(head)
    )
    return [path for path in found if path and keys.visible_path(path)]


def _keys(written: str) -> Iterator[str]:
    """Yields the keys that an event may mean, without the "/" of a directory marker: AWS and MinIO
    write them as in a form ("+" is a space, MinIO's "/" is "%2F"), versitygw writes them as they
    are. Which of them sent it, an event does not tell. To check a name that did not change costs
    one request."""
    if "%" in written or "+" in written:
        yield urllib.parse.unquote_plus(written).rstrip("/")
    yield written.rstrip("/")
