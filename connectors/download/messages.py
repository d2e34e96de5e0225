"""The messages between a worker and its download process, as MessagePack. A message is one packet
of a SOCK_SEQPACKET socket; the files of its downloads come with it. Both ends are of one `VERSION`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

import cachefs

VERSION: Final = f"{cachefs.__version__}-1"  # an update may replace the code of a running worker
PACKET_BYTES: Final = 192 << 10  # the largest message; the kernel's default buffer has 208 KiB
AT_ONCE: Final = 16  # downloads of a message, so that it fits a packet


class Download(msgspec.Struct, frozen=True, array_like=True):
    """A request for `size` bytes from `offset` of an object. They are written to the file at
    `place`. `options`: the number of libcurl's options; `answer`: as in `HttpRequest`."""

    id: int
    url: str
    headers: Sequence[str]
    offset: int
    size: int
    place: int
    options: int
    answer: Sequence[tuple[str, str]]
    report_s: float  # the least time between two reports


class Orders(msgspec.Struct, frozen=True, array_like=True):
    """Downloads to begin and to cancel. `options` are new ones, by their number."""

    options: Mapping[int, Mapping[int, Any]]
    downloads: Sequence[Download]
    cancelled: Sequence[int] = ()


class Report(msgspec.Struct, frozen=True, array_like=True):
    """What was written of a download since the last report: the checksums (xxh3_64) of further
    whole pages, in order. `code`: None until the end, then "" or the code of an error;
    `errno`: of a failed write; `allocated_bytes`: that the file takes on its disk, at the end. The
    counts are those of the whole download."""

    id: int
    checksums: list[int]
    received_bytes: int
    code: str | None = None
    errno: int = 0
    connections: int = 0
    handshakes: int = 0
    allocated_bytes: int = -1
