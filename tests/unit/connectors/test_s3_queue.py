"""The requests of a queue of SQS as libcurl sends them, and what becomes of each reply."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from cachefs.core import errors
from cachefs.core.errors import CacheFSError
from connectors.event_queue import QueueMessage
from connectors.s3.options import S3Options
from connectors.s3.queue import SqsQueue
from tests.unit.connectors.scripted_s3 import Answer, Request, ScriptedS3, scripted_s3

KEY, SECRET, TOKEN = "key", "secret", "the-token"
AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=key/\d+/eu-west-3/sqs/aws4_request,\s*"
    r"SignedHeaders=([a-z0-9;-]+),\s*Signature=([0-9a-f]{64})"
)


@pytest.fixture
def sqs() -> Iterator[ScriptedS3]:
    with scripted_s3() as running:
        yield running


@pytest.fixture
def queue(sqs: ScriptedS3, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqsQueue]:
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    one = SqsQueue(f"{sqs.url}/1/events", S3Options(region="eu-west-3"))
    yield one
    one.close()


def reply(status: int = 200, **facts: object) -> Answer:
    headers = {"Content-Type": "application/x-amz-json-1.0", "x-amzn-RequestId": "REQ7"}
    return Answer(status, json.dumps(facts).encode(), headers)


def asked(request: Request) -> tuple[str, dict[str, object]]:
    assert (request.method, request.target) == ("POST", "/")
    assert request.headers["content-type"] == "application/x-amz-json-1.0"
    return request.headers["x-amz-target"], json.loads(request.body)


def test_a_queue_that_does_not_report_its_retention(sqs: ScriptedS3, queue: SqsQueue) -> None:
    """ElasticMQ 1.7.1 leaves MessageRetentionPeriod out. No downtime of the master is then short
    enough: it compares the whole source."""
    sqs.script = lambda _: reply(Attributes={})
    assert queue.retention_s() == 0.0


def test_messages_are_received_and_deleted(sqs: ScriptedS3, queue: SqsQueue) -> None:
    facts = {"SentTimestamp": "1700000000123"}
    message = {"MessageId": "m", "Body": "{}", "ReceiptHandle": "h", "Attributes": facts}
    sqs.script = lambda _: reply(Messages=[message])
    assert queue.receive(10, 30) == [QueueMessage("{}", "h", 1_700_000_000.123)]
    action, body = asked(sqs.requests[-1])
    assert action == "AmazonSQS.ReceiveMessage"
    assert body["QueueUrl"] == f"{sqs.url}/1/events"
    assert (body["MaxNumberOfMessages"], body["WaitTimeSeconds"]) == (10, 10)
    sqs.script = lambda _: reply()
    assert queue.receive(0, 30) == []
    queue.delete(["h", "i"])
    action, body = asked(sqs.requests[-1])
    assert action == "AmazonSQS.DeleteMessageBatch"
    assert body["Entries"] == [{"Id": "0", "ReceiptHandle": "h"}, {"Id": "1", "ReceiptHandle": "i"}]
    sqs.script = lambda _: reply(Attributes={"MessageRetentionPeriod": "345600"})
    assert queue.retention_s() == 345_600.0


def test_the_signature_is_the_one_that_botocore_computes(sqs: ScriptedS3, queue: SqsQueue) -> None:
    sqs.script = lambda _: reply()
    queue.receive(0, 30)
    request = sqs.requests[-1]
    found = AUTHORIZATION.match(request.headers["authorization"])
    assert found is not None, request.headers["authorization"]
    signed = {name: request.headers[name] for name in found[1].split(";")}
    assert signed["x-amz-security-token"] == TOKEN
    assert {"host", "x-amz-date", "x-amz-target"} <= set(signed)
    same = AWSRequest("POST", f"{sqs.url}/", headers=signed, data=request.body)
    same.context["timestamp"] = signed["x-amz-date"]
    auth = SigV4Auth(Credentials(KEY, SECRET, TOKEN), "sqs", "eu-west-3")
    text = auth.string_to_sign(same, auth.canonical_request(same))
    assert auth.signature(text, same) == found[2]


@pytest.mark.parametrize(
    ("status", "kind", "expected", "words"),
    [
        (400, "com.amazonaws.sqs#QueueDoesNotExist", errors.NotFound, "no such queue"),
        (400, "AWS.SimpleQueueService.NonExistentQueue", errors.NotFound, "no such queue"),
        (403, "com.amazon.coral.service#AccessDeniedException", errors.AccessDenied, "denied"),
        (403, "ExpiredTokenException", errors.CredentialsMissing, "expired"),
        (400, "ThrottlingException", errors.Throttled, "throttles"),
        (500, "InternalFailure", errors.Unavailable, "temporarily"),
        (400, "InvalidAddress", errors.OriginError, "InvalidAddress"),
    ],
)
def test_refusals(
    sqs: ScriptedS3,
    queue: SqsQueue,
    status: int,
    kind: str,
    expected: type[CacheFSError],
    words: str,
) -> None:
    sqs.script = lambda _: reply(status, __type=kind, message="said so")
    with pytest.raises(expected, match=words) as caught:
        queue.receive(0, 30)
    assert caught.value.path == f"{sqs.url}/1/events"
    if expected is errors.AccessDenied:
        assert "sqs:ReceiveMessage" in caught.value.remedy
        assert caught.value.request_id == "REQ7"


@pytest.mark.parametrize("body", [b"", b"[]", b"<html/>", b"\xff", b"[" * 100_000])
def test_a_refusal_that_is_no_document(sqs: ScriptedS3, queue: SqsQueue, body: bytes) -> None:
    sqs.script = lambda _: Answer(403, body)
    with pytest.raises(errors.AccessDenied):
        queue.receive(0, 30)


DEEP = b'{"x": ' + b"[" * 100_000


@pytest.mark.parametrize("body", [b"[]", b"<html/>", b'{"Messages": [{"Body": 1}]}', b"\xff", DEEP])
def test_a_reply_that_cannot_be_read(sqs: ScriptedS3, queue: SqsQueue, body: bytes) -> None:
    sqs.script = lambda _: Answer(200, body)
    with pytest.raises(errors.BadBody):
        queue.receive(0, 30)


@pytest.mark.parametrize("number", ["soon", "-1", "nan", "1e300", "9" * 5000, "\u0661"])
def test_times_that_are_no_numbers(sqs: ScriptedS3, queue: SqsQueue, number: str) -> None:
    message = {"Body": "{}", "ReceiptHandle": "h", "Attributes": {"SentTimestamp": number}}
    sqs.script = lambda _: reply(Messages=[message])
    with pytest.raises(errors.BadBody, match="in place of a number"):
        queue.receive(0, 30)
    sqs.script = lambda _: reply(Attributes={"MessageRetentionPeriod": number})
    with pytest.raises(errors.BadBody, match="in place of a number"):
        queue.retention_s()


def test_a_queue_that_does_not_answer(sqs: ScriptedS3, queue: SqsQueue) -> None:
    answers = iter([Answer(200, b"{}", cut_after=1), reply()])
    sqs.script = lambda _: next(answers)
    with pytest.raises(errors.BadBody):
        queue.receive(0, 30)
    assert queue.receive(0, 30) == []
    gone = SqsQueue("http://127.0.0.1:9/1/events", S3Options())
    with pytest.raises(errors.Unreachable) as caught:
        gone.receive(0, 30)
    assert caught.value.path == "http://127.0.0.1:9/1/events"


def without_a_reply(sqs: ScriptedS3) -> None:
    """Lets the server close the connection of the next request, and answer those after it."""

    def first(_: Request) -> Answer:
        sqs.script = lambda _: reply(Attributes={"MessageRetentionPeriod": "60"})
        raise ConnectionResetError

    sqs.script = first


def test_the_loss_of_a_reply_with_messages_is_an_error(sqs: ScriptedS3, queue: SqsQueue) -> None:
    """A second call would not receive these messages, as the queue hides them."""
    without_a_reply(sqs)
    with pytest.raises(errors.Unreachable):
        queue.receive(0, 30)
    assert len(sqs.requests) == 1


def test_other_calls_are_repeated_once(sqs: ScriptedS3, queue: SqsQueue) -> None:
    without_a_reply(sqs)
    queue.delete(["h"])
    assert len(sqs.requests) == 2
    without_a_reply(sqs)
    assert queue.retention_s() == 60.0
