"""Events of S3 servers as they send them, and the names that they concern."""

from __future__ import annotations

import json

import msgspec
import pytest

from master.push.s3_events import Notification, objects, paths_below

AWS = {
    "eventVersion": "2.1", "eventSource": "aws:s3", "awsRegion": "eu-west-1",
    "eventTime": "2026-01-02T03:04:05.000Z", "eventName": "ObjectCreated:Put",
    "requestParameters": {"sourceIPAddress": "127.0.0.1"},
    "s3": {
        "s3SchemaVersion": "1.0", "configurationId": "all",
        "bucket": {"name": "bucket", "arn": "arn:aws:s3:::bucket"},
        "object": {"key": "train/a+b%2Bc.jpg", "size": 3, "eTag": "e", "sequencer": "00"},
    },
}  # fmt: skip


def decoded(document: object) -> list[tuple[str, str]]:
    return objects(msgspec.json.decode(json.dumps(document), type=Notification))


def test_a_message_of_aws() -> None:
    assert decoded({"Records": [AWS]}) == [("bucket", "train/a+b%2Bc.jpg")]


def test_a_message_of_minio_has_more() -> None:
    document = {"EventName": "s3:ObjectRemoved:Delete", "Key": "bucket/k", "Records": [AWS]}
    assert len(decoded(document)) == 1


@pytest.mark.parametrize(
    "document",
    [{"Service": "Amazon S3", "Event": "s3:TestEvent"}, {}, {"Records": []}, {"Records": [{}]}],
)
def test_a_message_of_a_test_concerns_nothing(document: object) -> None:
    assert decoded(document) == []


def paths(url: str, *keys: str, bucket: str = "bucket") -> list[bytes]:
    return paths_below(url, [(bucket, key) for key in keys])


def test_keys_are_meant_as_they_are_or_as_in_a_form() -> None:
    assert paths("s3://bucket/train", "train/a+b%2Bc.jpg") == [b"a b+c.jpg", b"a+b%2Bc.jpg"]
    assert paths("s3://bucket", "plain", "plain") == [b"plain"]
    assert paths("s3://bucket", "%C3%BC") == ["ü".encode(), b"%C3%BC"]


def test_a_source_may_be_written_with_a_slash_at_its_end() -> None:
    assert paths("s3://bucket/train/", "train/a", "other") == [b"a"]
    assert paths("s3://bucket/", "a") == [b"a"]


def test_what_is_elsewhere_or_no_name_is_left_out() -> None:
    assert paths("s3://bucket/train", "train", "train/", "trainer/x", "other") == []
    assert paths("s3://bucket", "a//b", "../x", "nul\0", "f" * 256, "") == []
    assert paths("s3://bucket", "a", bucket="other") == []
    assert paths("s3://bucket", "directory/") == [b"directory"]


def test_a_marker_of_a_directory_may_be_written_as_in_a_form() -> None:
    """By MinIO."""
    assert b"train/empty" in paths("s3://bucket", "train%2Fempty%2F")
    assert b"empty" in paths("s3://bucket/train", "train%2Fempty%2F")
