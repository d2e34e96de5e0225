"""The messages of queues: notifications of S3, as they are and wrapped, and what is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from master.push.queue_messages import changed_objects

S3 = {"Records": [{"eventName": "ObjectCreated:Put", "s3": {
    "bucket": {"name": "b"}, "object": {"key": "im/a+b", "size": 3}}}]}  # fmt: skip
FOUND = [("b", "im/a+b")]


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (S3, FOUND),
        ({"Type": "Notification", "TopicArn": "x", "Message": json.dumps(S3)}, FOUND),
        ({"version": "0", "detail-type": "Object Created", "source": "aws.s3",
          "detail": {"version": "0", "bucket": {"name": "b"}, "object": {"key": "im/x y"}}},
         [("b", "im/x y")]),
        ({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "b"}, []),
        ({"Records": []}, []),
        ({"Records": [{"eventName": "x"}]}, []),
    ],
)  # fmt: skip
def test_messages_of_stores(message: Any, found: list[tuple[str, str]]) -> None:
    assert changed_objects(json.dumps(message)) == found


@pytest.mark.parametrize(
    "body",
    [
        "",
        "hello",
        "{}",
        "[]",
        "null",
        '{"job": 7}',
        '{"Records": 1}',
        '{"Records": [{"s3": 1}]}',
        '{"Message": "hello"}',
        '{"detail": {"bucket": "b"}}',
        "[" * 100_000,
        '{"Records": [{"s3": {"bucket": {"name": "b"}, "object": {}}}]}',
    ],
)
def test_messages_of_others(body: str) -> None:
    assert changed_objects(body) is None
