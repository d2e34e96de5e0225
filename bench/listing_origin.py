"""An S3 origin with a million made-up objects that only lists, for benches of listings:
`python -m bench.listing_origin --names N --latency SECONDS`.

The bucket `flat` has all objects in one directory, `tree` has 1,000 in each of its directories. One
thread computes each page from the names' numbers and answers after the latency. Signatures are not
checked. It prints one JSON line with its URL and ends with its standard input.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

PER_FOLDER = 1000
PAGE = 1000
OBJECT = (
    "<Contents><Key>%s</Key><LastModified>2024-01-02T03:04:05.000Z</LastModified>"
    "<ETag>&quot;d41d8cd98f00b204e9800998ecf8427e&quot;</ETag><Size>1</Size>"
    "<StorageClass>STANDARD</StorageClass></Contents>"
)
PAGE_XML = (
    '<?xml version="1.0" encoding="UTF-8"?>\n'
    '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>%s</Name>'
    "<Prefix>%s</Prefix><KeyCount>%d</KeyCount><MaxKeys>1000</MaxKeys>%s"
    "<IsTruncated>%s</IsTruncated>%s</ListBucketResult>"
)


def file_name(number: int) -> str:
    return f"f{number:07d}.jpg"


def folder_name(number: int) -> str:
    return f"d{number:04d}"


class Buckets:
    """The listings of both buckets. A token is the number of the next item."""

    def __init__(self, names: int) -> None:
        self._names = names

    def page(self, bucket: str, prefix: str, delimiter: str, start: int) -> str:
        folders = -(-self._names // PER_FOLDER)
        if bucket == "flat":
            count, items = self._names, self._files("", start)
        elif prefix:
            number = int(prefix[1:5])
            count = min(PER_FOLDER, self._names - number * PER_FOLDER)
            items = self._files(prefix, start)
        elif delimiter:
            count, items = folders, self._folders(start)
        else:
            count, items = self._names, self._everything(start)
        end = min(count, start + PAGE)
        rows = "".join(next(items) for _ in range(start, end))
        more = f"<NextContinuationToken>{end}</NextContinuationToken>" if end < count else ""
        truncated = "true" if more else "false"
        return PAGE_XML % (bucket, prefix, end - start, more, truncated, rows)

    def _files(self, prefix: str, start: int) -> Iterator[str]:
        while True:
            yield OBJECT % (prefix + file_name(start))
            start += 1

    def _folders(self, start: int) -> Iterator[str]:
        while True:
            yield f"<CommonPrefixes><Prefix>{folder_name(start)}/</Prefix></CommonPrefixes>"
            start += 1

    def _everything(self, start: int) -> Iterator[str]:
        while True:
            folder, number = divmod(start, PER_FOLDER)
            yield OBJECT % f"{folder_name(folder)}/{file_name(number)}"
            start += 1


class Connection(asyncio.Protocol):
    """One connection. Its requests have no body."""

    def __init__(self, buckets: Buckets, latency_s: float) -> None:
        self._buckets = buckets
        self._latency_s = latency_s
        self._received = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            method, target, _ = self._received.split(b" ", 2)
            self._received = self._received[end + 4 :]
            loop = asyncio.get_running_loop()
            loop.call_later(self._latency_s, self._answer, method.decode(), target.decode())

    def _answer(self, method: str, target: str) -> None:
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        body = b""
        if method == "GET":
            start = int(query.get("continuation-token", "0"))
            bucket = parts.path.strip("/")
            prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
            body = self._buckets.page(bucket, prefix, delimiter, start).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}"
        self._transport.write(head.encode() + b"\r\n\r\n" + body)


async def serve(names: int, latency_s: float) -> None:
    loop, buckets = asyncio.get_running_loop(), Buckets(names)
    server = await loop.create_server(lambda: Connection(buckets, latency_s), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    print(json.dumps({"endpoint_url": f"http://127.0.0.1:{port}"}), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--names", type=int, required=True)
    parser.add_argument("--latency", type=float, default=0.0)
    chosen = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(chosen.names, chosen.latency))
