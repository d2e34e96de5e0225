"""Downloads that the test's own thread drives, and the files that they are written to."""

from __future__ import annotations

import functools
import os
import random
import re
import select
import time
from collections.abc import Callable, Iterator

import pycurl
import xxhash

from cachefs.core.errors import BY_CODE
from cachefs.core.model import PAGE_BYTES
from connectors.download.downloader import FULL_S, Downloader, Target
from connectors.download.messages import Report
from connectors.fetch.request import HttpRequest
from tests.unit.connectors.raw_http import LIMIT_S, Came, RawServer

LOOK_S = 0.02  # between looks at what no report shows
ETAG = "v1"
TOTAL = (9 << 20) + 4321  # bytes of the object
FILL = b"\xee"  # what a file has before and behind the place of a download
MARGIN = 5000  # bytes of a file behind that place
NAME = "body-of-a-test"


@functools.cache
def whole_object() -> bytes:
    return random.Random("object").randbytes(TOTAL)


def part(offset: int, size: int) -> bytes:
    return whole_object()[offset : offset + size]


def request(raw: RawServer, offset: int, size: int, target: str = "/object") -> HttpRequest:
    """Returns a request for a range of the object."""
    options = {pycurl.PROXY: ""}
    if raw.certificate is not None:
        options[pycurl.CAINFO] = str(raw.certificate)
    wanted = f"bytes {offset}-{offset + size - 1}/{TOTAL}"
    headers = (f"Range: bytes={offset}-{offset + size - 1}",)
    answer = ("etag", ETAG), ("content-range", wanted)
    return HttpRequest(raw.url + target, headers, size, options, answer)


def range_of(came: Came) -> tuple[int, int]:
    """Returns the offset and the size that a request asks for."""
    found = re.search(rb"\r\nRange: bytes=(\d+)-(\d+)\r\n", came.head)
    assert found, came.head
    first, last = map(int, found.groups())
    return first, last - first + 1


def head(offset: int, size: int, length: str = "Content-Length: {}") -> bytes:
    lines = [
        "HTTP/1.1 206 Partial Content",
        f'ETag: "{ETAG}"',
        f"Content-Range: bytes {offset}-{offset + size - 1}/{TOTAL}",
        length.format(size),
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def reply(came: Came) -> bytes:
    offset, size = range_of(came)
    return head(offset, size) + part(offset, size)


def answer(came: Came) -> bool:
    came.sock.sendall(reply(came))
    return True


def pages(offset: int, size: int) -> Iterator[tuple[int, int]]:
    """Yields where the pages of a body begin and end. Those of the object begin at the multiples
    of their size."""
    at = 0
    while at < size:
        end = min(size, (offset + at) // PAGE_BYTES * PAGE_BYTES + PAGE_BYTES - offset)
        yield at, end
        at = end


class Into:
    """A file in memory, the range of the object that it is to have at `place`, and the reports of
    its download. Each of them is compared with the file as it comes."""

    def __init__(self, offset: int, size: int, place: int = 0, fd: int | None = None) -> None:
        """`fd`: another file, which is not filled."""
        self.offset, self.size, self.place = offset, size, place
        self.pages = [*pages(offset, size)]
        self.reports: list[Report] = []
        self.checksums: list[int] = []
        self.fd = os.memfd_create(NAME, os.MFD_CLOEXEC) if fd is None else fd
        if fd is None:
            os.pwrite(self.fd, self.filled, 0)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    @property
    def filled(self) -> bytes:
        """The file before anything is written."""
        return FILL * (self.place + self.size + MARGIN)

    @property
    def written(self) -> bytes:
        """The file with the whole range."""
        data = part(self.offset, self.size)
        return FILL * self.place + data + FILL * MARGIN

    @property
    def content(self) -> bytes:
        """The file as it is."""
        return os.pread(self.fd, self.place + self.size + MARGIN + 1, 0)

    @property
    def code(self) -> str | None:
        return self.reports[-1].code if self.reports else None

    @property
    def has_ended(self) -> bool:
        return self.code is not None

    @property
    def received_bytes(self) -> int:
        return self.reports[-1].received_bytes if self.reports else 0

    def on_report(self, report: Report) -> None:
        assert not self.has_ended, "a report behind the last one"
        assert self.received_bytes <= report.received_bytes <= self.size
        first = len(self.checksums)
        self.checksums += report.checksums
        self.reports.append(report)
        for number in range(first, len(self.checksums)):
            self._check_page(number)
        if report.code is None:
            assert report.checksums
        else:
            assert report.code == "" or report.code in BY_CODE
            self._check_allocated(report.allocated_bytes)

    def _check_allocated(self, size_bytes: int) -> None:
        if size_bytes >= 0:  # else the disk may hang
            assert size_bytes == os.fstat(self.fd).st_blocks * 512

    def _check_page(self, number: int) -> None:
        """A page that was reported is in the file, and is right."""
        start, end = self.pages[number]
        assert self.received_bytes >= end
        data = os.pread(self.fd, end - start, self.place + start)
        assert xxhash.xxh3_64_intdigest(data) == self.checksums[number]
        assert data == part(self.offset + start, end - start)

    def check_right(self) -> None:
        """After a download that went well."""
        assert self.code == ""
        assert self.content == self.written
        assert len(self.checksums) == len(self.pages)
        assert self.received_bytes == self.size
        assert self.reports[-1].errno == 0
        assert self.reports[-1].allocated_bytes >= self.size

    def check_failed(self, code: str) -> None:
        """After one that did not. Nothing is written beside its place."""
        assert self.code == code
        content, end = self.content, self.place + self.size
        assert content[: self.place] == FILL * self.place
        assert content[end:] == FILL * MARGIN


class Driven:
    """A downloader, driven while a test waits for something."""

    def __init__(self, silence_s: int = 20) -> None:
        self.downloader = Downloader(silence_s)
        self.pid: int = self.downloader._process.pid
        self.until(lambda: self.downloader.is_ready, "the process starts")

    def start(self, get: HttpRequest, into: Into, report_s: float = 0.0) -> int:
        target = Target(into.fd, into.offset, into.place, report_s)
        return self.downloader.start(get, target, into.on_report)

    def begin(self, raw: RawServer, into: Into, report_s: float = 0.0) -> int:
        """Starts a download of the object, and sends the order."""
        id = self.start(request(raw, into.offset, into.size), into, report_s)
        self.downloader.turn()
        return id

    def until(self, holds: Callable[[], bool], what: str) -> None:
        until_s = time.monotonic() + LIMIT_S
        while not holds():
            assert time.monotonic() < until_s, what
            self.downloader.turn()
            if holds():
                return
            assert not self.downloader.has_ended, "the process has ended"
            limit_s = FULL_S if self.downloader.is_full else LOOK_S
            select.select([self.downloader.fileno()], [], [], limit_s)

    def until_reported(self, into: Into, pages: int) -> None:
        self.until(lambda: len(into.checksums) >= pages, "the pages are reported")
        assert len(into.checksums) == pages

    def until_ended(self, *intos: Into) -> None:
        self.until(lambda: all(into.has_ended for into in intos), "the downloads end")

    def download(self, raw: RawServer, offset: int, size: int, place: int = 0) -> Into:
        into = Into(offset, size, place)
        self.begin(raw, into)
        self.until_ended(into)
        return into

    def open_files(self) -> list[str]:
        """Returns the files of downloads that the process has open."""
        folder = f"/proc/{self.pid}/fd"
        found = [os.readlink(f"{folder}/{name}") for name in os.listdir(folder)]
        return [path for path in found if NAME in path]

    def check_idle(self) -> None:
        assert len(self.downloader._running) == 0
        assert self.downloader.at_disk % 2 == 0
        assert self.open_files() == []

    def close(self) -> None:
        self.downloader.close()
        assert self.downloader.has_stopped(LIMIT_S), "the process ends"
