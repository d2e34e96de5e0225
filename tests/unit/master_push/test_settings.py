"""What an operator may write for the feed of a source."""

from __future__ import annotations

import msgspec
import pytest

from cachefs.core.errors import BadConfig
from cachefs.core.model import UfsSpec
from connectors.file.connector import READING as FILE
from connectors.s3.connector import READING as S3
from master.origins.unavailable import NullConnector
from master.push.feeds import _wanted
from master.push.settings import Kind, checked, parse, poll_s
from master.state.records import MountRecord
from master.tree import Mount

QUEUE = "https://sqs.eu-central-1.amazonaws.com/123456789012/events"


@pytest.mark.parametrize(
    ("push", "kept"),
    [
        ("", ""),
        ("webhook:team-a", "webhook:team-a"),
        (f"sqs:{QUEUE}", f"sqs:{QUEUE}"),
        (f"sqs:{QUEUE}/", f"sqs:{QUEUE}"),
        ("sqs:http://127.0.0.1:9324/000000000000/q", "sqs:http://127.0.0.1:9324/000000000000/q"),
    ],
)
def test_feeds_of_a_bucket(push: str, kept: str) -> None:
    assert checked(push, "s3://bucket", S3) == kept


@pytest.mark.parametrize(
    ("push", "kept"), [("poll", "poll:5s"), ("poll:1m", "poll:60s"), ("poll:1.5s", "poll:1.5s")]
)
def test_polls_of_directories(push: str, kept: str) -> None:
    assert checked(push, "file:///x", FILE) == kept
    assert checked(kept, "file:///x", FILE) == kept, "it is a normal form"


def test_parts_of_a_setting() -> None:
    assert parse("") == (Kind.NONE, "")
    assert parse("webhook:team-a") == (Kind.WEBHOOK, "team-a")
    assert parse(f"sqs:{QUEUE}") == (Kind.QUEUE, QUEUE)
    assert poll_s(parse("poll:90s").value) == 90.0


def test_a_queue_has_one_reader_however_its_url_was_stored() -> None:
    """Each message is delivered once: of two readers each would miss what the other one gets."""
    mounts = [
        Mount(ino, MountRecord(UfsSpec("s3://b"), path, push=push), NullConnector(), 60.0)
        for ino, path, push in ((2, b"a", f"sqs:{QUEUE}/"), (3, b"b", f"sqs:{QUEUE}"))
    ]
    (key,) = _wanted(mounts)
    assert key.feed == parse(f"sqs:{QUEUE}")


@pytest.mark.parametrize(
    ("push", "url"),
    [
        ("webhook", "s3://b"),
        ("webhook:", "s3://b"),
        ("webhook:../x", "s3://b"),
        ("webhook:team-a", "file:///x"),
        ("sqs", "s3://b"),
        ("sqs:x", "s3://b"),
        ("sqs:ftp://host/q", "s3://b"),
        ("sqs:https://host", "s3://b"),
        ("sqs:https://[::1/q", "s3://b"),
        ("sqs:https://host:99999/q", "s3://b"),
        ("sqs:https://host:port/q", "s3://b"),
        ("sqs:https://user:secret@host/q", "s3://b"),
        ("sqs:https://host/q?x=1", "s3://b"),
        ("sqs:https://host/" + "q" * 3000, "s3://b"),
        (f"sqs:{QUEUE}", "gs://b"),
        (f"sqs:{QUEUE}", "s3://point-0123456789-s3alias/train"),
        ("webhook:team-a", "s3://point-0123456789--ol-s3"),
        ("webhook:team-a", "az://a/c"),
        ("poll", "gs://b"),
        ("poll", "s3://b"),
        ("mail:x", "s3://b"),
    ],
)
def test_other_feeds_are_refused(push: str, url: str) -> None:
    """[C-no-feed]"""
    with pytest.raises(BadConfig):
        checked(push, url, S3)


@pytest.mark.parametrize("push", ["poll:", "poll:0", "poll:0.5s", "poll:2h", "poll:-1", "poll:x"])
def test_intervals_of_polls_that_cannot_be(push: str) -> None:
    if push == "poll:":
        assert checked(push, "file:///x", FILE) == "poll:5s"
        return
    with pytest.raises(BadConfig):
        checked(push, "file:///x", FILE)


def test_a_store_without_times_cannot_be_polled() -> None:
    with pytest.raises(BadConfig, match="no time of their last change"):
        checked("poll", "file:///x", msgspec.structs.replace(FILE, directory_times=False))
