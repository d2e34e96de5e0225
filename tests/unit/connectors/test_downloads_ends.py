"""The ends of downloads and of their process: failing disks, cancelled downloads, silence, a killed
process, one that hangs, and one whose worker has ended."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cachefs.core.model import PAGE_BYTES
from connectors.download import downloader as downloader_module
from connectors.download.messages import AT_ONCE
from tests.services.hanging_disk import hanging_disk
from tests.unit.connectors import downloads
from tests.unit.connectors.downloads import Driven, Into, answer, part
from tests.unit.connectors.raw_http import LIMIT_S, Came, RawServer

REPOSITORY = Path(__file__).parents[3]
END_S = 20.0  # for a process to end by itself, on a busy machine
LARGE = 2 * PAGE_BYTES + 100


@pytest.fixture(scope="module")
def process() -> Iterator[Driven]:
    made = Driven()
    yield made
    made.close()


@pytest.fixture
def driven(process: Driven) -> Iterator[Driven]:
    """One process for tests that leave it as it is."""
    yield process
    process.check_idle()


@pytest.fixture
def own() -> Iterator[Driven]:
    """A process to be stopped or killed."""
    made = Driven()
    yield made
    made.close()


class Held:
    """A script that sends what is left of each reply behind `sent` bytes of its body once the test
    allows it. Those to /free are not held."""

    def __init__(self, raw: RawServer, sent: int) -> None:
        self._sent = sent
        self._go_on = threading.Event()
        raw.script = self._answer

    def go_on(self) -> None:
        self._go_on.set()

    def _answer(self, came: Came) -> bool:
        if came.target == "/free":
            return answer(came)
        offset, size = downloads.range_of(came)
        data = downloads.head(offset, size) + part(offset, size)
        cut = len(data) - size + self._sent if self._sent else 0
        came.sock.sendall(data[:cut])
        assert self._go_on.wait(LIMIT_S)
        came.sock.sendall(data[cut:])
        return True


@pytest.fixture
def held(request: pytest.FixtureRequest, raw: RawServer) -> Iterator[Held]:
    """Sends one and a half pages at first, or as many bytes as its parameter."""
    made = Held(raw, getattr(request, "param", PAGE_BYTES + PAGE_BYTES // 2))
    yield made
    made.go_on()


# ---- disks that fail ----


def read_only(path: Path) -> int:
    path.touch()
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def limited(size: int) -> int:
    """A file of `size` bytes, which cannot grow."""
    fd = os.memfd_create(downloads.NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    return fd


FAILING: dict[str, tuple[Callable[[Path], int], int, int]] = {
    "read-only": (read_only, errno.EBADF, 0),
    "full": (lambda _: os.open("/dev/full", os.O_RDWR | os.O_CLOEXEC), errno.ENOSPC, 0),
    "limited": (lambda _: limited(0), errno.EPERM, 0),
    "limited-in-the-first-page": (lambda _: limited(PAGE_BYTES // 2), errno.EPERM, 0),
    "limited-in-the-second-page": (lambda _: limited(PAGE_BYTES + 70_000), errno.EPERM, 1),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_write_that_fails(
    raw: RawServer, held: Held, driven: Driven, tmp_path: Path, name: str
) -> None:
    """Pages before it were reported. Another download of the process is not harmed."""
    open_, code, pages = FAILING[name]
    other = Into(5, LARGE)
    driven.begin(raw, other)
    driven.until_reported(other, 1)
    failed = Into(0, LARGE, fd=open_(tmp_path / "file"))
    driven.start(downloads.request(raw, 0, LARGE, "/free"), failed)
    driven.until_ended(failed)
    assert failed.code == "origin-error"
    assert failed.reports[-1].errno == code
    assert len(failed.checksums) == pages
    assert not other.has_ended
    held.go_on()
    driven.until_ended(other)
    other.check_right()
    driven.download(raw, 0, LARGE).check_right()


def test_a_short_write_is_continued_and_fails(raw: RawServer, own: Driven) -> None:
    """As on a full disk: the kernel writes what has room, and refuses the rest."""
    raw.script = answer
    room = PAGE_BYTES + 54_321
    resource.prlimit(own.pid, resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    into = Into(0, LARGE, fd=os.memfd_create(downloads.NAME, os.MFD_CLOEXEC))
    own.begin(raw, into)
    own.until_ended(into)
    assert into.reports[-1].errno == errno.EFBIG
    assert len(into.checksums) == 1
    assert into.content == part(0, room)
    own.check_idle()


# ---- cancelled downloads ----


def cancelled(driven: Driven, id: int, into: Into) -> bytes:
    """Returns the file after the last report."""
    driven.downloader.cancel(id)
    driven.until_ended(into)
    return into.content


@pytest.mark.parametrize("held", [0], indirect=True)
def test_cancelled_before_the_head(raw: RawServer, held: Held, driven: Driven) -> None:
    into = Into(0, LARGE)
    id = driven.begin(raw, into)
    driven.until(lambda: raw.has_asked(1), "it is asked for")
    after = cancelled(driven, id, into)
    into.check_failed("interrupted")
    assert after == into.filled
    assert (into.received_bytes, into.checksums) == (0, [])
    held.go_on()
    raw.wait(lambda: raw.has_ended(1), "its connection is closed")
    assert into.content == after


def test_cancelled_in_the_body(raw: RawServer, held: Held, driven: Driven) -> None:
    into = Into(0, LARGE, place=3)
    id = driven.begin(raw, into)
    driven.until_reported(into, 1)
    after = cancelled(driven, id, into)
    into.check_failed("interrupted")
    assert into.received_bytes <= PAGE_BYTES + PAGE_BYTES // 2
    held.go_on()
    raw.wait(lambda: raw.has_ended(1), "its connection is closed")
    driven.download(raw, 0, LARGE).check_right()
    assert into.content == after


@pytest.mark.parametrize("seed", range(10))
def test_cancelled_at_any_time(raw: RawServer, driven: Driven, seed: int) -> None:
    """The last report is that of the usual end, or the download was interrupted; nothing is written
    after it. The other downloads are right."""
    rng = random.Random(seed)
    raw.script = answer
    intos = [Into(rng.randrange(1 << 20), rng.randrange(1, 2 << 20)) for _ in range(12)]
    ids = [driven.begin(raw, into) for into in intos]
    to_end = rng.sample(range(12), 6)
    for number in to_end:
        driven.downloader.cancel(ids[number])
        driven.downloader.turn()
        for _ in range(rng.randrange(5)):
            select.select([driven.downloader.fileno()], [], [], downloads.LOOK_S / 10)
            driven.downloader.turn()
    after = {}
    for number in to_end:
        driven.until_ended(intos[number])
        after[number] = intos[number].content
    driven.until_ended(*intos)
    for number, into in enumerate(intos):
        if number in after and into.code:
            into.check_failed("interrupted")
            assert into.content == after[number]
        else:
            into.check_right()


@pytest.mark.parametrize("held", [0], indirect=True)
def test_cancelled_before_it_was_sent(raw: RawServer, held: Held, driven: Driven) -> None:
    """In more messages than one. None of them is forgotten."""
    intos = [Into(0, 1000) for _ in range(2 * AT_ONCE + 3)]
    ids = [driven.start(downloads.request(raw, 0, 1000), into) for into in intos]
    for id in ids:
        driven.downloader.cancel(id)
    driven.until_ended(*intos)
    for into in intos:
        into.check_failed("interrupted")
        assert into.content == into.filled
        assert len(into.reports) == 1


def test_cancelled_after_its_end(raw: RawServer, driven: Driven) -> None:
    """The process has reported the end, which this thread has not received."""
    raw.script = answer
    into = Into(0, 1000)
    id = driven.start(downloads.request(raw, 0, 1000), into)
    driven.downloader._send_orders()  # `turn` may receive the report, too
    ready, _, _ = select.select([driven.downloader.fileno()], [], [], LIMIT_S)
    assert ready
    assert not into.has_ended
    driven.downloader.cancel(id)
    driven.until_ended(into)
    into.check_right()
    driven.downloader.cancel(id)
    driven.downloader.turn()
    driven.download(raw, 0, 1000).check_right()
    assert len(into.reports) == 1


# ---- silence ----


@pytest.mark.parametrize("held", [0], indirect=True)
def test_silence_ends_a_download(raw: RawServer, held: Held) -> None:
    driven = Driven(silence_s=1)
    into = Into(0, LARGE)
    driven.begin(raw, into)
    driven.until_ended(into)
    into.check_failed("unreachable")
    assert into.content == into.filled
    held.go_on()
    driven.download(raw, 0, LARGE).check_right()
    driven.check_idle()
    driven.close()


@pytest.fixture
def plain() -> Iterator[RawServer]:
    made = RawServer()
    yield made
    made.close()


def test_silence_in_a_body_ends_a_download(plain: RawServer) -> None:
    """Nothing of the page that it cuts is reported. It counts once the mean speed of libcurl's last
    seconds is 0, so that this takes a few of them."""
    driven, sizes = Driven(silence_s=1), (1000, PAGE_BYTES + PAGE_BYTES // 2)
    held = [Held(plain, size) for size in sizes]
    scripts = {f"/{size}": one._answer for size, one in zip(sizes, held, strict=True)}
    plain.script = lambda came: scripts[came.target](came)
    intos = [Into(0, LARGE) for _ in sizes]
    for size, into in zip(sizes, intos, strict=True):
        driven.start(downloads.request(plain, 0, LARGE, f"/{size}"), into)
    driven.until_ended(*intos)
    for size, into, one in zip(sizes, intos, held, strict=True):
        into.check_failed("unreachable")
        assert into.received_bytes == size
        assert len(into.checksums) == size // PAGE_BYTES
        one.go_on()
    driven.check_idle()
    driven.close()


# ---- the process ends, or hangs ----


def begin_three(driven: Driven, raw: RawServer) -> list[Into]:
    """Begins downloads of which one has begun its body, and two wait to be sent."""
    intos = [Into(0, LARGE) for _ in range(3)]
    driven.begin(raw, intos[0])
    driven.until_reported(intos[0], 1)
    for into in intos[1:]:
        driven.start(downloads.request(raw, 0, LARGE), into)
    return intos


def check_closed(driven: Driven, intos: list[Into]) -> None:
    """Each was reported once; `Into` refuses another report."""
    driven.close()
    assert len(driven.downloader._running) == 0
    for into in intos:
        into.check_failed("unreachable")
        assert into.reports[-1].checksums == []
    assert not Path(f"/proc/{driven.pid}").exists()


def test_the_process_is_killed(raw: RawServer, held: Held) -> None:
    driven = Driven()
    intos = begin_three(driven, raw)
    os.kill(driven.pid, signal.SIGKILL)
    os.waitid(os.P_PID, driven.pid, os.WEXITED | os.WNOWAIT)
    assert not driven.downloader.has_ended
    driven.downloader.turn()
    assert driven.downloader.has_ended
    assert not any(into.has_ended for into in intos)
    check_closed(driven, intos)


def test_the_process_hangs(raw: RawServer, held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    """`close` does not wait for it, and it writes nothing afterwards."""
    driven = Driven()
    intos = begin_three(driven, raw)
    driven.downloader.turn()
    assert not driven.downloader.hangs
    os.kill(driven.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, driven.pid, os.WSTOPPED | os.WNOWAIT)
    monkeypatch.setattr(downloader_module, "PROCESS_LIMIT_S", -60.0)
    intos.append(Into(0, 100))
    driven.start(downloads.request(raw, 0, 100), intos[-1])
    assert driven.downloader.hangs
    assert not driven.downloader.has_stopped()
    check_closed(driven, intos)
    after = [into.content for into in intos]
    held.go_on()
    raw.wait(lambda: raw.has_ended(raw.connections), "the connections are closed")
    assert [into.content for into in intos] == after


def test_a_download_whose_time_is_not_over_does_not_hang(
    raw: RawServer, held: Held, driven: Driven
) -> None:
    """Its bytes have their own time, beside that of the process."""
    into = Into(0, LARGE)
    driven.begin(raw, into)
    assert not driven.downloader.hangs
    left_s = next(iter(driven.downloader._running.values())).until_s - time.monotonic()
    assert left_s > downloader_module.PROCESS_LIMIT_S + 10
    held.go_on()
    driven.until_ended(into)
    assert not driven.downloader.hangs


def test_closed_with_downloads_in_progress(raw: RawServer, held: Held) -> None:
    driven = Driven()
    check_closed(driven, begin_three(driven, raw))


def test_the_process_ends_with_the_socket(raw: RawServer, held: Held) -> None:
    """By itself, without an error."""
    driven = Driven()
    into = Into(0, LARGE)
    driven.begin(raw, into)
    driven.until_reported(into, 1)
    with socket.socket(fileno=os.dup(driven.downloader.fileno())) as ours:
        ours.shutdown(socket.SHUT_RDWR)
    assert driven.downloader.has_stopped(END_S)
    assert driven.downloader._process.returncode == 0
    driven.downloader.turn()
    assert driven.downloader.has_ended
    check_closed(driven, [into])


PARENT = """
import os, select, sys
from connectors.download.downloader import Downloader, Target
from connectors.fetch.request import HttpRequest
downloader = Downloader()
url, options = sys.argv[1], eval(sys.argv[2])
get = HttpRequest(url, ("Range: bytes=0-99",), 100, options)
downloader.start(get, Target(os.memfd_create("body"), 0, 0), print)
downloader.turn()
print(downloader._process.pid, flush=True)
select.select([], [], [])
"""


@pytest.mark.parametrize("held", [0], indirect=True)
def test_the_process_ends_with_a_killed_server(raw: RawServer, held: Held) -> None:
    get = downloads.request(raw, 0, 100)
    command = [sys.executable, "-c", PARENT, get.url, repr(get.options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY) as parent:
        assert parent.stdout is not None
        pid_fd = os.pidfd_open(int(parent.stdout.readline()))
        try:
            raw.wait(lambda: raw.has_asked(1), "its download has begun")
            assert not select.select([pid_fd], [], [], 0)[0]
            parent.kill()
            assert select.select([pid_fd], [], [], END_S)[0], "the process ends"
        finally:
            os.close(pid_fd)
    held.go_on()
    raw.wait(lambda: raw.has_ended(1), "its connection is closed")


# ---- a disk that hangs ----


def in_a_write(driven: Driven) -> bool:
    """Returns whether the process waits for the disk, which is a FUSE server."""
    place = Path(f"/proc/{driven.pid}/wchan").read_text()
    return place == "request_wait_answer" and driven.downloader.at_disk % 2 == 1


def test_a_write_that_hangs_is_seen(
    raw: RawServer, held: Held, driven: Driven, own: Driven, tmp_path: Path
) -> None:
    with hanging_disk(tmp_path) as disk:
        fd = os.open(disk.path / "f", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        into = Into(0, LARGE, fd=fd)
        own.begin(raw, into)
        own.until_reported(into, 1)
        disk.hang()
        held.go_on()
        own.until(lambda: in_a_write(own), "the write begins")
        step = own.downloader.at_disk
        for _ in range(3):
            driven.download(raw, 0, LARGE).check_right()
            own.downloader.turn()
            assert own.downloader.at_disk == step
        disk.go_on()
        own.until_ended(into)
        assert into.content == part(0, LARGE)
        assert own.downloader.at_disk > step
        own.check_idle()
        into.close()


def test_closed_while_a_write_hangs(
    raw: RawServer, held: Held, own: Driven, tmp_path: Path
) -> None:
    """`close` does not wait, and the process has ended once the disk goes on."""
    with hanging_disk(tmp_path) as disk:
        fd = os.open(disk.path / "f", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        into = Into(0, LARGE, fd=fd)
        own.begin(raw, into)
        own.until_reported(into, 1)
        disk.hang()
        held.go_on()
        own.until(lambda: in_a_write(own), "the write begins")
        own.downloader.close()
        assert into.code == "unreachable"
        disk.go_on()
        assert own.downloader.has_stopped(LIMIT_S)
        into.close()
