"""One queue of Amazon SQS, or of a server that speaks its protocol. Each call blocks a thread.

The endpoint and the region are those of the queue's URL. Credentials, certificates and the profile
are those of the source.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    SSLError,
)
from botocore.exceptions import (
    ConnectionError as NoConnection,
)

from cachefs.core.errors import AccessDenied, CacheFSError, NotFound, Unreachable
from connectors.event_queue import AT_ONCE, QueueMessage
from connectors.s3.access import DEFAULT_REGION, Keys, S3Credentials, open_session
from connectors.s3.errors import S3Failure, classify, from_botocore
from connectors.s3.options import S3Options

CONNECT_S: Final = 5.0
ANSWER_S: Final = 10.0  # beyond the time that a request waits for messages
CONNECTIONS: Final = 8
MS: Final = 1000
RIGHTS: Final = (
    "the master needs sqs:ReceiveMessage, sqs:DeleteMessage and sqs:GetQueueAttributes on it"
)
_REGION: Final = re.compile(r"(?:^|\.)sqs\.([a-z0-9-]+)\.(?:vpce\.)?amazonaws\.com(?:\.cn)?$")


class SqsQueue:
    """See `connectors.event_queue.EventQueue`."""

    def __init__(self, url: str, options: S3Options) -> None:
        """Sends no request."""
        self._url = url
        self._options = options
        self._credentials = S3Credentials(options)
        self._lock = threading.Lock()
        self._client: tuple[Keys | None, Any] | None = None

    def receive(self, wait_s: int, visible_after_s: int) -> list[QueueMessage]:
        reply = self._call(
            "receive_message",
            MaxNumberOfMessages=AT_ONCE,
            WaitTimeSeconds=wait_s,
            VisibilityTimeout=visible_after_s,
            MessageSystemAttributeNames=["SentTimestamp"],
        )
        return [_message(one) for one in reply.get("Messages", ())]

    def delete(self, handles: Sequence[str]) -> None:
        entries = [{"Id": str(at), "ReceiptHandle": one} for at, one in enumerate(handles)]
        self._call("delete_message_batch", Entries=entries)

    def retention_s(self) -> float:
        name = "MessageRetentionPeriod"
        reply = self._call("get_queue_attributes", AttributeNames=[name])
        return float(reply["Attributes"][name])

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client[1].close()

    def _call(self, method: str, **arguments: Any) -> Any:
        try:
            return getattr(self._connected(), method)(QueueUrl=self._url, **arguments)
        except (BotoCoreError, ClientError) as error:
            self._credentials.forget()
            raise _translated(error, self._url) from error

    def _connected(self) -> Any:
        """Returns a client with the credentials of this moment."""
        keys = self._credentials.current()
        with self._lock:
            if self._client is None or self._client[0] != keys:
                self._client = keys, self._make_client(keys)
            return self._client[1]

    def _make_client(self, keys: Keys | None) -> Any:
        session = open_session(self._options.profile or None)
        if keys is not None:
            session.set_credentials(keys.access_key, keys.secret_key, keys.token)
        parts = urlsplit(self._url)
        found = _REGION.search(parts.hostname or "")
        region = found[1] if found else self._options.region
        config = Config(
            connect_timeout=CONNECT_S,
            read_timeout=20 + ANSWER_S,
            retries={"total_max_attempts": 2},
            max_pool_connections=CONNECTIONS,
            signature_version=UNSIGNED if keys is None else None,
        )
        return session.create_client(
            "sqs",
            region_name=region or session.get_config_variable("region") or DEFAULT_REGION,
            endpoint_url=f"{parts.scheme}://{parts.netloc}",
            verify=self._options.ca_bundle or session.get_config_variable("ca_bundle") or True,
            config=config,
        )


def _message(found: Any) -> QueueMessage:
    sent_at = int(found["Attributes"]["SentTimestamp"]) / MS
    return QueueMessage(found["Body"], found["ReceiptHandle"], sent_at)


def _translated(error: BotoCoreError | ClientError, url: str) -> CacheFSError:
    """Returns the typed error of a failed request."""
    if isinstance(error, ClientError):
        return _refused(error, url)
    no_answer = isinstance(error, (NoConnection, HTTPClientError))
    if no_answer and not isinstance(error, SSLError):
        return Unreachable("the queue does not answer", path=url)
    found = from_botocore(error)
    return type(found)(found.cause, remedy=found.remedy, path=url)


def _refused(error: ClientError, url: str) -> CacheFSError:
    reply = error.response
    facts, code = reply.get("ResponseMetadata", {}), reply.get("Error", {}).get("Code", "")
    if code.endswith(("NonExistentQueue", "QueueDoesNotExist")):
        remedy = "check the URL and the region; cachefs ufs set --push changes it"
        return NotFound("no such queue", remedy=remedy, path=url)
    status, text = facts.get("HTTPStatusCode", 0), reply.get("Error", {}).get("Message", "")
    found = classify(S3Failure(status, code, text, facts.get("RequestId", "")), url)
    if isinstance(found, AccessDenied):
        return AccessDenied(found.cause, remedy=RIGHTS, path=url, request_id=found.request_id)
    return found
