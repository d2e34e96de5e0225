"""One queue of Amazon SQS, or of a server that speaks its protocol. Each call blocks a thread.

libcurl sends the requests, in SQS's JSON protocol: a call of botocore takes several ms of CPU time,
and a message with one event needs a fifth of a call. The endpoint and the region are those of the
queue's URL. Credentials, certificates and the profile are those of the source.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import pycurl
from botocore.exceptions import BotoCoreError
from botocore.utils import get_environ_proxies

from cachefs.core.errors import AccessDenied, BadBody, CacheFSError, NotFound, Unreachable
from cachefs.core.message import DECODE_ERRORS
from connectors.bodies import read_whole_body
from connectors.event_queue import AT_ONCE, QueueMessage
from connectors.fetch.connection_pool import ConnectionPool, FetchBody
from connectors.fetch.request import HttpRequest
from connectors.s3.access import DEFAULT_REGION, Endpoint, S3Credentials, open_session
from connectors.s3.errors import S3Failure, classify, from_botocore
from connectors.s3.http import signed_options
from connectors.s3.options import S3Options

REPLY_BYTES: Final = 16 << 20  # ten messages of 1 MiB, escaped
MS: Final = 1000
RIGHTS: Final = (
    "the master needs sqs:ReceiveMessage, sqs:DeleteMessage and sqs:GetQueueAttributes on it"
)
_REGION: Final = re.compile(r"(?:^|\.)sqs\.([a-z0-9-]+)\.(?:vpce\.)?amazonaws\.com(?:\.cn)?$")
_NUMBER: Final = re.compile("[0-9]{1,18}")
_JSON: Final = "Content-Type: application/x-amz-json-1.0"


class _Attributes(msgspec.Struct, rename="pascal"):
    sent_timestamp: str = "0"
    message_retention_period: str = "0"


class _Message(msgspec.Struct, rename="pascal"):
    body: str
    receipt_handle: str
    attributes: _Attributes


class _Reply(msgspec.Struct, rename="pascal"):
    """What the master reads of replies."""

    messages: list[_Message] | None = None
    attributes: _Attributes = msgspec.field(default_factory=_Attributes)


class SqsQueue:
    """See `connectors.event_queue.EventQueue`."""

    def __init__(self, url: str, options: S3Options) -> None:
        """Sends no request."""
        self._url = url
        self._options = options
        self._credentials = S3Credentials(options)
        self._connections = ConnectionPool()
        self._lock = threading.Lock()
        self._endpoint: Endpoint | None = None

    def receive(self, wait_s: int, visible_after_s: int) -> list[QueueMessage]:
        reply = self._call_once(
            "ReceiveMessage",
            MaxNumberOfMessages=AT_ONCE,
            WaitTimeSeconds=wait_s,
            VisibilityTimeout=visible_after_s,
            MessageSystemAttributeNames=["SentTimestamp"],
        )
        return [self._message(one) for one in reply.messages or ()]

    def delete(self, handles: Sequence[str]) -> None:
        entries = [{"Id": str(at), "ReceiptHandle": one} for at, one in enumerate(handles)]
        self._call("DeleteMessageBatch", Entries=entries)

    def retention_s(self) -> float:
        name = "MessageRetentionPeriod"
        reply = self._call("GetQueueAttributes", AttributeNames=[name])
        return _number(reply.attributes.message_retention_period, self._url)

    def close(self) -> None:
        self._connections.close()

    def _message(self, found: _Message) -> QueueMessage:
        sent_at = _number(found.attributes.sent_timestamp, self._url) / MS
        return QueueMessage(found.body, found.receipt_handle, sent_at)

    def _call(self, action: str, **arguments: Any) -> _Reply:
        """Returns the reply to a call, the second time if the first has none: a server may close a
        kept connection. Raises the typed errors."""
        try:
            return self._call_once(action, **arguments)
        except Unreachable:
            return self._call_once(action, **arguments)

    def _call_once(self, action: str, **arguments: Any) -> _Reply:
        """Returns the reply to a call. Raises the typed errors. A reply with messages may be lost:
        these are hidden then, and the caller has to know it."""
        body = json.dumps({"QueueUrl": self._url, **arguments}).encode()
        try:
            return _decoded(self._sent(action, body), self._url)
        except CacheFSError as error:
            error.path = self._url
            raise

    def _sent(self, action: str, body: bytes) -> bytes:
        """Returns the body of a successful reply."""
        reply = self._connections.get(self._request(action, body), self._url)
        if not reply.head.is_success:
            reply.close()
            self._credentials.forget()
            raise _refused(reply, self._url)
        return bytes(read_whole_body(reply))

    def _request(self, action: str, body: bytes) -> HttpRequest:
        """Returns a request with the credentials of this moment."""
        endpoint, keys = self._found(), self._credentials.current()
        options, headers = signed_options(endpoint, keys, "sqs")
        sent = {pycurl.POSTFIELDSIZE_LARGE: len(body), pycurl.POSTFIELDS: body}
        lines = (*headers, _JSON, f"X-Amz-Target: AmazonSQS.{action}", "Expect:")
        url = f"{endpoint.url}/"
        return HttpRequest(
            url, lines, REPLY_BYTES, {**options, **sent}, is_limit=True, sent_bytes=len(body)
        )

    def _found(self) -> Endpoint:
        """Returns the address of the queue's service. Raises CredentialsMissing for a bad
        profile."""
        with self._lock:
            if self._endpoint is None:
                try:
                    self._endpoint = _endpoint(self._url, self._options)
                except BotoCoreError as error:
                    raise from_botocore(error) from error
            return self._endpoint


def _endpoint(url: str, options: S3Options) -> Endpoint:
    session, parts = open_session(options.profile or None), urlsplit(url)
    service_url = f"{parts.scheme}://{parts.netloc}"
    found = _REGION.search(parts.hostname or "")
    region = found[1] if found else options.region
    region = region or session.get_config_variable("region") or DEFAULT_REGION
    verify = options.ca_bundle or session.get_config_variable("ca_bundle") or True
    proxies = get_environ_proxies(service_url)
    return Endpoint(service_url, service_url, region, False, bool(found), verify, proxies)


def _decoded(body: bytes, url: str) -> _Reply:
    try:
        return msgspec.json.decode(body or b"{}", type=_Reply)
    except DECODE_ERRORS as error:
        raise BadBody(f"the queue's reply cannot be read ({error})", path=url) from error


def _number(text: str, url: str) -> float:
    """Returns a time or a duration of a reply. Raises BadBody."""
    if not _NUMBER.fullmatch(text):
        raise BadBody(f"the queue's reply has {text[:40]!r} in place of a number", path=url)
    return float(text)


def _refused(reply: FetchBody, url: str) -> CacheFSError:
    """Returns the typed error of a reply that is not 2xx."""
    kind, message = _explanation(reply.refusal)
    code = kind.rpartition("#")[2]
    if code.endswith(("NonExistentQueue", "QueueDoesNotExist")):
        remedy = "check the URL and the region; cachefs ufs set --push changes it"
        return NotFound("no such queue", remedy=remedy, path=url)
    request_id = reply.head.headers.get("x-amzn-requestid", "")
    failure = S3Failure(reply.head.status or 502, code, message, request_id)
    found = classify(failure, url)
    if isinstance(found, AccessDenied):
        return AccessDenied(found.cause, remedy=RIGHTS, path=url, request_id=request_id)
    return found


def _explanation(body: bytes) -> tuple[str, str]:
    """Returns the type and the message of an error document; "" where it has none."""
    try:
        known: Mapping[str, Any] = json.loads(body)
        text = {str(name).lower(): str(value) for name, value in known.items()}
    except (ValueError, AttributeError, RecursionError):
        return "", ""
    return text.get("__type", ""), text.get("message", "")[:300]
