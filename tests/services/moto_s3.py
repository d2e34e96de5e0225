"""moto's servers of S3 and SQS: for the keys that a real server on a file system cannot keep
(`a//b`, `..`), and for buckets that send their events to a queue."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.services.s3_server import S3Server, free_port


@contextlib.contextmanager
def moto_s3(directory: Path) -> Iterator[S3Server]:
    """A server in memory; `directory` gets its log. It accepts every key and secret."""
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    server = S3Server(
        command=[sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        environment={"MOTO_S3_CUSTOM_ENDPOINTS": ""},
        port=port,
        access_key="any",
        secret_key="any",
        region="us-east-1",
        log=directory / "moto.log",
    )
    server.start()
    try:
        yield server
    finally:
        server.stop()


def sqs_client(server: S3Server) -> Any:
    """Returns a client of the server's queues."""
    import boto3

    return boto3.client(
        "sqs",
        endpoint_url=server.endpoint_url,
        region_name=server.region,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
    )


def event_queue(server: S3Server, bucket: str, name: str = "events") -> str:
    """Makes a queue to which the bucket sends its events; returns its URL."""
    queues = sqs_client(server)
    url: str = queues.create_queue(QueueName=name)["QueueUrl"]
    facts = queues.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]
    events = ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]
    rule = {"QueueArn": facts["QueueArn"], "Events": events}
    server.client().put_bucket_notification_configuration(
        Bucket=bucket, NotificationConfiguration={"QueueConfigurations": [rule]}
    )
    return url
