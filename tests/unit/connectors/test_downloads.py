"""Downloads by a process of its own: bodies are right and where they belong, a page is reported
once it is in the file, and nothing of another reply is written."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pytest

from cachefs.core.errors import BY_CODE
from cachefs.core.model import PAGE_BYTES
from connectors.download.downloader import Target
from connectors.download.file_exchange import WRITE_BYTES, WRITE_PIECES
from tests.unit.connectors import downloads, raw_http
from tests.unit.connectors.downloads import FILL, TOTAL, Driven, Into, answer, part, range_of
from tests.unit.connectors.raw_http import LIMIT_S, Came, RawServer
from tests.unit.connectors.raw_replies import OTHERWISE, WRONG, with_any_head

SEED = random.SystemRandom().getrandbits(32)
UNEVEN = 2 * PAGE_BYTES - 4567  # an offset, 4567 bytes before the end of a page
NEVER_S = 3600.0


@pytest.fixture(scope="module")
def process() -> Iterator[Driven]:
    made = Driven()
    yield made
    made.close()


@pytest.fixture
def driven(process: Driven) -> Iterator[Driven]:
    """One process for all tests of this module."""
    yield process
    process.check_idle()


def whole(raw: RawServer, target: str, driven: Driven) -> Into:
    """Downloads a file as `raw_http.reply` writes it."""
    into = Into(0, raw_http.size_of(target), place=100)
    reports = into.reports
    driven.downloader.start(raw_http.get(raw, target), Target(into.fd, 0, 100), reports.append)
    driven.until_ended(into)
    return into


def holds_whole(into: Into, target: str) -> bool:
    """Returns whether a file of `whole` is right."""
    before, after = FILL * into.place, FILL * downloads.MARGIN
    return into.content == before + raw_http.content(target, into.size) + after


class InPages:
    """A script that sends a page of the body each time that the test allows it."""

    def __init__(self, raw: RawServer) -> None:
        self._allowed = threading.Semaphore(0)
        raw.script = self._answer

    def allow(self, count: int = 1) -> None:
        self._allowed.release(count)

    def _answer(self, came: Came) -> bool:
        offset, size = range_of(came)
        came.sock.sendall(downloads.head(offset, size))
        for start, end in downloads.pages(offset, size):
            assert self._allowed.acquire(timeout=LIMIT_S)
            came.sock.sendall(part(offset + start, end - start))
        return True


# ---- what goes well ----


def some_ranges(rng: random.Random) -> Iterator[tuple[int, int, int]]:
    """Yields an offset, a size and a place."""
    sizes = [1, 2, 1000, WRITE_BYTES, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, 4 * PAGE_BYTES]
    sizes += [int((3 << 20) ** rng.random()) for _ in range(30)]
    sizes += [rng.randrange(1, 3 << 20) for _ in range(10)]
    rng.shuffle(sizes)
    for number, size in enumerate(sizes):
        offset = rng.randrange(TOTAL - size)
        if number % 3 == 0:
            offset -= offset % PAGE_BYTES
        yield offset, size, rng.choice([0, offset, rng.randrange(1 << 20)])


def test_many_at_once(raw: RawServer, driven: Driven) -> None:
    print(f"seed {SEED}")
    raw.script = raw_http.in_pieces(SEED, downloads.reply)
    intos = [Into(*one) for one in some_ranges(random.Random(SEED))]
    for number, into in enumerate(intos):
        driven.start(downloads.request(raw, into.offset, into.size, f"/{number}"), into)
    assert len(driven.downloader._running) == len(intos)
    driven.until_ended(*intos)
    for into in intos:
        into.check_right()
    assert sum(into.reports[-1].connections for into in intos) == raw.connections
    tls = raw.certificate is not None
    assert sum(into.reports[-1].handshakes for into in intos) == raw.connections * tls


def test_a_kept_connection_is_used_again(raw: RawServer, driven: Driven) -> None:
    raw.script = answer
    for number in range(3):
        into = driven.download(raw, number * PAGE_BYTES, PAGE_BYTES + number)
        into.check_right()
        assert into.reports[-1].connections == (number == 0)
    assert raw.connections == 1


def test_a_connection_that_was_closed_is_replaced(raw: RawServer, driven: Driven) -> None:
    raw.script = lambda came: came.number == 0 and answer(came)
    for _ in range(3):
        driven.download(raw, 5, 1000).check_right()


# ---- pages are reported as they come ----


@pytest.mark.parametrize("offset", [PAGE_BYTES, UNEVEN])
def test_each_page_is_reported_before_the_next(raw: RawServer, driven: Driven, offset: int) -> None:
    """The server waits for that."""
    server, into = InPages(raw), Into(offset, 3 * PAGE_BYTES + 17, place=12345)
    driven.begin(raw, into)
    for number, (_, end) in enumerate(into.pages, 1):
        server.allow()
        driven.until_reported(into, number)
        assert into.received_bytes == end
    driven.until_ended(into)
    into.check_right()
    assert len(into.reports) == len(into.pages), "the last one comes with the end"


def test_nothing_of_a_part_of_a_page_is_reported(raw: RawServer, driven: Driven) -> None:
    go_on = threading.Event()

    def script(came: Came) -> bool:
        data = downloads.reply(came)
        cut = len(data) - PAGE_BYTES // 2
        came.sock.sendall(data[:cut])
        assert go_on.wait(LIMIT_S)
        came.sock.sendall(data[cut:])
        return True

    raw.script = script
    into = Into(0, 2 * PAGE_BYTES)
    driven.begin(raw, into)
    written = PAGE_BYTES + 2 * WRITE_BYTES  # of the half of the second page
    driven.until(lambda: into.content[:written] == part(0, written), "a part is in the file")
    driven.until_reported(into, 1)
    assert [len(report.checksums) for report in into.reports] == [1]
    go_on.set()
    driven.until_ended(into)
    into.check_right()


def test_a_quiet_download_is_reported_at_its_end(raw: RawServer, driven: Driven) -> None:
    server, into, other = InPages(raw), Into(UNEVEN, 3 * PAGE_BYTES), Into(0, 2 * PAGE_BYTES)
    driven.begin(raw, into, report_s=NEVER_S)
    server.allow(3)
    end = into.pages[2][1]
    driven.until(lambda: into.content[:end] == into.written[:end], "three pages are in the file")
    server.allow(4)
    driven.begin(raw, other)
    driven.until_ended(into, other)
    assert len(into.reports) == 1
    for one in (into, other):
        one.check_right()


def test_reports_keep_their_distance(raw: RawServer, driven: Driven) -> None:
    server, into, report_s = InPages(raw), Into(0, 3 * PAGE_BYTES), 0.7
    began_s = time.monotonic()
    driven.begin(raw, into, report_s)
    for number in (1, 2):
        server.allow()
        driven.until_reported(into, number)
        assert time.monotonic() - began_s >= number * report_s
    server.allow()
    driven.until_ended(into)
    into.check_right()


# ---- replies that are not the expected ones ----


@pytest.mark.parametrize("name", WRONG)
def test_another_reply_fails(raw: RawServer, driven: Driven, name: str) -> None:
    """And writes nothing. The next download is not harmed by what is left of it."""

    raw.script = raw_http.sends(WRONG[name], "/f/100")
    failed = whole(raw, "/f/100", driven)
    assert failed.code in BY_CODE
    assert failed.content == failed.filled
    assert failed.reports[-1].errno == 0
    for target in ("/g/100", f"/h/{PAGE_BYTES + 1}"):
        right = whole(raw, target, driven)
        assert right.code == ""
        assert holds_whole(right, target)


LARGE_WRONG = {
    "403": (b"206 Partial Content", b"403 Forbidden"),
    "200": (b"206 Partial Content", b"200 OK"),
    "another-etag": (b'ETag: "v1"', b'ETag: "v2"'),
    "no-etag": (b"ETag", b"X-ETag"),
    "another-range": (b"bytes 5-", b"bytes 6-"),
    "another-total": (f"/{TOTAL}\r\n".encode(), f"/{TOTAL + 1}\r\n".encode()),
    "no-range": (b"Content-Range", b"X-Range"),
    "two-etags": (b'ETag: "v1"', b'ETag: "v1"\r\nETag: "v1"'),
    "longer": (b"Content-Length: 2", b"Content-Length: 3"),
    "no-length": (b"Content-Length", b"Transfer-Encoding: gzip\r\nX"),
}


@pytest.mark.parametrize("name", LARGE_WRONG)
def test_nothing_of_another_large_reply_is_written(
    raw: RawServer, driven: Driven, name: str
) -> None:
    def script(came: Came) -> bool:
        data = downloads.reply(came)
        assert data.count(LARGE_WRONG[name][0]) == 1
        came.sock.sendall(data.replace(*LARGE_WRONG[name]))
        return False

    raw.script = script
    failed = driven.download(raw, 5, 2 * PAGE_BYTES, place=77)
    failed.check_failed("origin-error" if name != "no-length" else "unreachable")
    assert failed.content == failed.filled
    assert failed.checksums == []
    raw.script = answer
    driven.download(raw, 5, 2 * PAGE_BYTES, place=77).check_right()


@pytest.mark.parametrize("more", OTHERWISE)
def test_right_ones_that_are_written_otherwise(raw: RawServer, driven: Driven, more: str) -> None:
    raw.script = raw_http.sends(OTHERWISE[more])
    into = whole(raw, "/f/100", driven)
    assert into.code == ""
    assert holds_whole(into, "/f/100")


@pytest.mark.parametrize("chunk", [1, 40, 3000])
def test_thousands_of_chunks(raw: RawServer, driven: Driven, chunk: int) -> None:
    """Each is a piece of its own, and a write takes a limited number of them."""

    def script(came: Came) -> bool:
        offset, size = range_of(came)
        data = part(offset, size)
        cut = (data[at : at + chunk] for at in range(0, size, chunk))
        lines = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in cut)
        length = "Transfer-Encoding: chunked"
        came.sock.sendall(downloads.head(offset, size, length) + lines + b"0\r\n\r\n")
        return True

    raw.script = script
    size = min(chunk * 3000, PAGE_BYTES + 5 * chunk)
    assert size > chunk * WRITE_PIECES
    driven.download(raw, PAGE_BYTES - 1000, size).check_right()


@pytest.mark.parametrize("size", [PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 99, PAGE_BYTES + 101])
def test_a_chunked_body_of_another_size_fails(raw: RawServer, driven: Driven, size: int) -> None:
    """Its head does not show that. Of what is too much nothing is written."""

    def script(came: Came) -> bool:
        offset, wanted = range_of(came)
        head = downloads.head(offset, wanted, "Transfer-Encoding: chunked")
        came.sock.sendall(head + b"%x\r\n%s\r\n0\r\n\r\n" % (size, part(offset, size)))
        return False

    raw.script = script
    into = driven.download(raw, 0, PAGE_BYTES + 100)
    into.check_failed("origin-error")
    assert into.checksums == [] or size >= PAGE_BYTES


@pytest.mark.parametrize("seed", range(40))
def test_a_head_of_any_bytes(driven: Driven, seed: int) -> None:
    """Either the body is right, or the download fails and nothing is written."""
    raw = RawServer()
    raw.script = raw_http.sends(with_any_head(seed))
    try:
        into = whole(raw, "/f/100", driven)
        assert holds_whole(into, "/f/100") if into.code == "" else into.content == into.filled
        assert into.code == "" or into.code in BY_CODE
    finally:
        raw.close()


# ---- bodies that end too early ----


@pytest.mark.parametrize("cut", [1, PAGE_BYTES // 2, PAGE_BYTES - 1, 2 * PAGE_BYTES - 1])
def test_a_body_that_is_cut(raw: RawServer, driven: Driven, cut: int) -> None:
    """The whole pages before its end were reported. Bytes that follow those belong to the page."""

    def script(came: Came) -> bool:
        came.sock.sendall(downloads.reply(came)[:-cut])
        return False

    raw.script = script
    into = driven.download(raw, 0, 2 * PAGE_BYTES, place=99)
    into.check_failed("unreachable")
    assert len(into.checksums) == (2 * PAGE_BYTES - cut) // PAGE_BYTES
    assert into.received_bytes == 2 * PAGE_BYTES - cut
    raw.script = answer
    driven.download(raw, 0, 2 * PAGE_BYTES, place=99).check_right()


def test_where_nothing_listens(driven: Driven) -> None:
    raw = RawServer()
    raw.close()
    into = driven.download(raw, 0, 100)
    into.check_failed("unreachable")
    assert into.content == into.filled
