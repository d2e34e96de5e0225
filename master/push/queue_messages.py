"""The messages of a queue that has the events of buckets. Pure.

A message is a notification of S3, or one that Amazon SNS wrapped in its own, or an event of Amazon
EventBridge. Formats: "Event message structure" and "EventBridge event message structure" of the
Amazon S3 user guide; "Parsing message formats" of the Amazon SNS developer guide.
"""

from __future__ import annotations

import msgspec

from master.push.s3_events import Notification, Subject, objects


class _Wrapped(msgspec.Struct, frozen=True):
    """What is around the events. A notification of S3 has `Records`; a test of S3 has `Event`."""

    message: str | None = msgspec.field(default=None, name="Message")
    detail: Subject | None = None
    records: list[msgspec.Raw] | None = msgspec.field(default=None, name="Records")
    event: str | None = msgspec.field(default=None, name="Event")


_wrapped = msgspec.json.Decoder(_Wrapped)
_notification = msgspec.json.Decoder(Notification)


def changed_objects(body: str) -> list[tuple[str, str]] | None:
    """Returns (bucket, key) of the objects that a message is about; None if it is no message of a
    store."""
    try:
        wrapped = _wrapped.decode(body)
        if wrapped.message is not None:
            body, wrapped = wrapped.message, _wrapped.decode(wrapped.message)
        if wrapped.detail is not None:
            return [(wrapped.detail.bucket.name, wrapped.detail.object.key)]
        if wrapped.records is None:
            return [] if wrapped.event is not None else None
        return objects(_notification.decode(body))
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
