"""The setting for how the changes of a source are reported. Pure.

webhook:NAME    the store posts events to the admin API, with the secret of the credential NAME
sqs:URL         the master reads the store's events from this queue of Amazon SQS
poll, poll:5s   the master compares the modification times of the directories, by default every
                `POLL_S`
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from cachefs.core.errors import BadConfig, CacheFSError
from cachefs.core.units import format_duration, parse_duration
from connectors import credential
from connectors.capabilities import Capabilities

POLL_S: Final = 5.0
MIN_POLL_S: Final = 1.0
MAX_POLL_S: Final = 3600.0
MAX_URL: Final = 2048  # characters
_EVENTS: Final = "s3://"
_ACCESS_POINTS: Final = ("-s3alias", "--ol-s3")  # their names that stand for a bucket's
_NO_FEED: Final = (
    "HDFS and directories have the feed poll, S3 has sqs and webhook, others have none"
)


class Kind(enum.Enum):
    """Who sends the reports."""

    NONE = ""
    WEBHOOK = "webhook"
    QUEUE = "sqs"
    POLL = "poll"


class Setting(NamedTuple):
    kind: Kind
    value: str  # the credential's name, the queue's URL, or the time between two rounds


def parse(push: str) -> Setting:
    """Returns a setting that `checked` has passed. Records of earlier versions may have the URL of
    a queue with a slash at its end."""
    kind, _, value = push.partition(":")
    return Setting(Kind(kind), value.rstrip("/"))


def poll_s(value: str) -> float:
    """Returns the time between two rounds of a poll."""
    return parse_duration(value)


def checked(push: str, url: str, capabilities: Capabilities) -> str:
    """Returns the normal form of what an operator wrote for the source `url`. Raises BadConfig."""
    kind, _, value = push.partition(":")
    match kind:
        case "":
            return ""
        case Kind.WEBHOOK.value if value:
            _check_events(url)
            credential.parse_name({credential.OPTION: value})
            return push
        case Kind.QUEUE.value if value:
            _check_events(url)
            return f"{kind}:{_queue(value)}"
        case Kind.POLL.value:
            if not capabilities.directory_times:
                cause = "the directories of this store have no time of their last change"
                raise BadConfig(cause, path=url, remedy=_NO_FEED)
            return f"{kind}:{_interval(value)}"
    remedy = "write webhook:NAME, sqs:URL, poll, or none"
    raise BadConfig(f"no such feed: {push!r}", remedy=remedy)


def _check_events(url: str) -> None:
    if not url.startswith(_EVENTS):
        raise BadConfig("only stores of S3 send events", path=url, remedy=_NO_FEED)
    bucket = url.removeprefix(_EVENTS).partition("/")[0]
    if bucket.endswith(_ACCESS_POINTS):
        remedy = "remove the source, and add it with the bucket's own name"
        raise BadConfig("events name the bucket, not its access point", path=url, remedy=remedy)


def _queue(url: str) -> str:
    parts = _parts(url) if url.isascii() and url.isprintable() and len(url) <= MAX_URL else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.path.strip("/"):
        remedy = "write it as https://sqs.REGION.amazonaws.com/ACCOUNT/NAME"
        raise BadConfig(f"bad URL of a queue: {url!r}", remedy=remedy)
    if "@" in parts.netloc or parts.query or parts.fragment:
        cause = "the URL of a queue holds no user, password or query"
        raise BadConfig(cause, remedy="leave it out")
    return url.rstrip("/")  # sources with one queue share its reader


def _parts(url: str) -> SplitResult | None:
    """Returns the parts of a URL; None for an impossible host or port."""
    try:
        parts = urlsplit(url)
        return parts if parts.port != 0 else None
    except ValueError:
        return None


def _interval(text: str) -> str:
    try:
        seconds = parse_duration(text) if text else POLL_S
    except CacheFSError as err:
        raise BadConfig(f"bad interval {text!r} of a poll", remedy="write poll:5s") from err
    if not MIN_POLL_S <= seconds <= MAX_POLL_S:
        limits = f"{format_duration(MIN_POLL_S)} to {format_duration(MAX_POLL_S)}"
        raise BadConfig(f"the interval of a poll is {limits}", remedy="write poll:5s")
    return f"{seconds:g}s"
