"""The times and sizes that the namespace can store and a kernel can show: 64 bits, signed. Pure.

An object beyond these bounds must not make its directory unreadable.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

NS: Final = 10**9
MAX_FILE_BYTES: Final = (1 << 63) - 1  # the largest file offset
MAX_TIME_S: Final = ((1 << 63) - 1) // NS  # April of 2262; the earliest is in September of 1677
MAX_TIME_NS: Final = MAX_TIME_S * NS
UNKNOWN_NS: Final = 0  # the time of an object whose time cannot be parsed
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)
_MONTHS: Final = (
    "Jan", "Feb", "Mar", "Apr", "May", "Jun",
    "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
)  # fmt: skip
_HTTP_DATE: Final = re.compile(r"\w{3}, (\d\d) (\w{3}) (\d{4}) (\d\d):(\d\d):(\d\d) GMT")


def clamped_ns(time_ns: int) -> int:
    """Returns the nearest time that can be stored."""
    if -MAX_TIME_NS <= time_ns <= MAX_TIME_NS:
        return time_ns
    return MAX_TIME_NS if time_ns > 0 else -MAX_TIME_NS


def whole_seconds_ns(time: datetime) -> int:
    """Returns a time without its fraction of a second. A time without a zone is in UTC."""
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return clamped_ns((time - _EPOCH) // _SECOND * NS)


def parse_http_date(text: str, unknown_ns: int = UNKNOWN_NS) -> int:
    """Returns the time of a header, or `unknown_ns` if it has none."""
    try:
        return whole_seconds_ns(_http_date(text))
    except (ValueError, OverflowError):
        return unknown_ns


def _http_date(text: str) -> datetime:
    """Parses the usual format here, since the library reads the year 0001 as 2001; leaves all other
    formats to the library."""
    found = _HTTP_DATE.fullmatch(text)
    if found is None:
        return parsedate_to_datetime(text)
    day, month, year, *clock = found.groups()
    hour, minute, second = map(int, clock)
    return datetime(int(year), _MONTHS.index(month) + 1, int(day), hour, minute, second)


def parse_size(text: str) -> int | None:
    """Returns the size in the text of a reply, or None if no file can have it."""
    try:
        size = int(text)
    except ValueError:
        return None
    return size if is_file_size(size) else None


def is_file_size(size: int) -> bool:
    """Returns whether a file can have this size."""
    return 0 <= size <= MAX_FILE_BYTES
