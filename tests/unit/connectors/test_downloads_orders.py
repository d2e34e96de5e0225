"""The orders to a download process: they arrive whole and in order, however full the socket is, and
each download has its own options."""

from __future__ import annotations

import base64
import mmap
import os
import random
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pycurl
import pytest

from connectors.download import downloader as downloader_module
from connectors.download.downloader import OPTIONS_KEPT, Downloader, Target
from connectors.download.messages import AT_ONCE, PACKET_BYTES, Download, Orders, Report
from connectors.fetch.request import HttpRequest
from tests.unit.connectors import downloads
from tests.unit.connectors.downloads import Driven, Into, answer
from tests.unit.connectors.raw_http import LIMIT_S, Came, RawServer

STALLED_TURNS = 100  # attempts to send


@pytest.fixture
def driven() -> Iterator[Driven]:
    made = Driven()
    yield made
    made.check_idle()
    made.close()


# ---- a process that the test plays ----


class Order(msgspec.Struct, frozen=True):
    """A download as it was ordered, or as it arrived. `file` is its inode."""

    id: int
    url: str
    headers: tuple[str, ...]
    range: tuple[int, int, int]  # offset, size, place
    options: Mapping[int, Any]
    answer: tuple[tuple[str, str], ...]
    report_s: float
    file: int


class Played:
    """The other end of a downloader's socket."""

    def __init__(self) -> None:
        self.ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ours.setblocking(False)
        self._theirs.setblocking(False)
        self._options: dict[int, Mapping[int, Any]] = {}
        self.orders: list[Order] = []
        self.cancelled: list[int] = []

    def kill(self) -> None:
        self._theirs.close()

    def report(self, *reports: Report) -> None:
        self._theirs.send(msgspec.msgpack.encode(list(reports)))

    def receive(self) -> bool:
        """Takes a message. Returns False if there is none."""
        try:
            data, fds, flags, _ = socket.recv_fds(self._theirs, PACKET_BYTES, AT_ONCE)
        except BlockingIOError:
            return False
        try:
            assert not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC)
            self._take(msgspec.msgpack.decode(data, type=Orders), fds)
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _take(self, orders: Orders, fds: list[int]) -> None:
        assert len(orders.downloads) <= AT_ONCE
        self._options.update(orders.options)
        assert len(self._options) <= 2 * OPTIONS_KEPT
        for one, fd in zip(orders.downloads, fds, strict=True):
            self.orders.append(self._order(one, fd))
        arrived = {order.id for order in self.orders}
        assert arrived.issuperset(orders.cancelled), "a download arrives before its end"
        self.cancelled += orders.cancelled

    def _order(self, one: Download, fd: int) -> Order:
        place = one.offset, one.size, one.place
        options, file = self._options[one.options], os.fstat(fd).st_ino
        headers, answer = tuple(one.headers), tuple((name, value) for name, value in one.answer)
        return Order(one.id, one.url, headers, place, options, answer, one.report_s, file)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    made = Played()
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    monkeypatch.setattr(downloader_module, "_start_process", lambda _: (made.ours, memory, made))
    yield made
    made.kill()
    made.ours.close()


class Orderer:
    """Orders downloads of any kind, and cancels some."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._pool = [{pycurl.USERAGENT: f"agent {n}"} for n in range(3 * OPTIONS_KEPT)]
        self._fds = [os.memfd_create("file", os.MFD_CLOEXEC) for _ in range(5)]
        self.downloader = Downloader()
        self.orders: list[Order] = []
        self.cancelled: set[int] = set()

    def start(self) -> None:
        rng = self._rng
        options = rng.choice(self._pool[:5] if rng.random() < 0.7 else self._pool)
        headers = tuple(f"X-{n}: {n}" for n in range(rng.randrange(4)))
        answer = tuple((f"x-{n}", "y") for n in range(rng.randrange(3)))
        url = "http://host/" + "x" * rng.randrange(1, 6000)
        range_ = rng.getrandbits(50), rng.randrange(1, 1 << 40), rng.getrandbits(40)
        get, fd = HttpRequest(url, headers, range_[1], options, answer), rng.choice(self._fds)
        report_s = rng.random()
        target = Target(fd, range_[0], range_[2], report_s)
        id = self.downloader.start(get, target, lambda _: None)
        file = os.fstat(fd).st_ino
        self.orders.append(Order(id, url, headers, range_, options, answer, report_s, file))

    def cancel(self) -> None:
        if self.orders:
            id = self._rng.choice(self.orders[-50:]).id
            self.downloader.cancel(id)
            self.cancelled.add(id)

    def close(self) -> None:
        self.downloader.close()
        for fd in self._fds:
            os.close(fd)


@pytest.mark.parametrize("seed", range(20))
def test_orders_arrive_whole_and_in_order(played: Played, seed: int) -> None:
    """However often the socket is full, and whichever options are new."""
    rng = random.Random(seed)
    orderer = Orderer(rng)
    is_ever_full = False
    for _ in range(60):
        for _ in range(rng.randrange(2 * AT_ONCE)):
            orderer.start()
            if rng.random() < 0.1:
                orderer.cancel()
        for _ in range(rng.choice([1, 1, 3, 100])):
            orderer.downloader.turn()
            is_ever_full |= orderer.downloader.is_full
        for _ in range(rng.choice([0, 0, 0, 2, 8])):
            played.receive()
    while played.receive() or orderer.downloader.is_full:
        orderer.downloader.turn()
    assert is_ever_full
    assert not orderer.downloader.has_ended
    assert played.orders == orderer.orders
    assert set(played.cancelled) == orderer.cancelled
    orderer.close()


@pytest.mark.parametrize("turns", range(OPTIONS_KEPT + 1, 2 * OPTIONS_KEPT, 9))
def test_options_that_were_not_sent_take_no_number(played: Played, turns: int) -> None:
    """Else the numbers wrap while the socket is full, and one that is in use would be another's."""
    orderer = Orderer(random.Random(0))
    downloader, fd = orderer.downloader, orderer._fds[0]
    sets = [{pycurl.USERAGENT: str(number)} for number in range(OPTIONS_KEPT)]

    def start(options: Mapping[int, Any], url: str = "http://host/") -> None:
        get = HttpRequest(url, (), 1, options)
        downloader.start(get, Target(fd, 0, 0), lambda _: None)

    for options in sets[:-1]:
        start(options)
    downloader.turn()
    while played.receive():
        pass
    long = "http://host/" + "x" * 8000
    while not downloader.is_full:
        start(sets[0], long)
        downloader.turn()
    start(sets[-1], long)
    for _ in range(turns):
        downloader.turn()
        assert downloader.is_full
    for options in sets:
        start(options)
    while played.receive() or downloader.is_full:
        downloader.turn()
    assert [order.options for order in played.orders[-OPTIONS_KEPT:]] == sets
    orderer.close()


def test_long_names_and_tokens_fill_several_messages(played: Played) -> None:
    """A message that is cut ends the process, and each later one, too."""
    downloader, file, count = Downloader(), Into(0, 1), 2 * AT_ONCE
    for number in range(count):
        get = HttpRequest(f"{number}/{'x' * 9300}", ("y" * 4000,), 1, {1: number})
        downloader.start(get, Target(file.fd, 0, 0), file.on_report)
    while len(played.orders) < count:
        downloader.turn()
        assert not downloader.has_ended
        assert played.receive()
    assert [order.options for order in played.orders] == [{1: number} for number in range(count)]


def test_reports_of_a_download_that_is_not_known_are_ignored(played: Played) -> None:
    reports: list[Report] = []
    downloader = Downloader()
    fd = os.memfd_create("file", os.MFD_CLOEXEC)
    get = HttpRequest("http://host/", (), 100, {})
    id = downloader.start(get, Target(fd, 0, 0), reports.append)
    assert not downloader.is_ready
    right = [Report(id, [7], 50), Report(id, [], 100, "")]
    other = [Report(id + 1, [], 3, ""), Report(0, [1], 1)]
    played.report(other[0], right[0], other[1])
    played.report(right[1], Report(id, [8], 1), Report(id, [], 1, ""))
    downloader.turn()
    assert downloader.is_ready
    assert reports == right
    assert len(downloader._running) == 0
    os.close(fd)
    downloader.close()


# ---- the process itself ----


class Agents:
    """A server that compares the User-Agent, an option of libcurl, with the target."""

    def __init__(self, raw: RawServer) -> None:
        self._raw = raw
        self.wrong: list[str] = []
        self._options: dict[str, Mapping[int, Any]] = {}
        raw.script = self._answer

    def request(self, agent: str) -> HttpRequest:
        """Requests of one agent have the same object as options."""
        get = downloads.request(self._raw, 0, 1000, f"/{agent}")
        options = self._options.setdefault(agent, {**get.options, pycurl.USERAGENT: agent})
        return HttpRequest(get.url, get.headers, get.size, options, get.answer)

    def _answer(self, came: Came) -> bool:
        if f"\r\nUser-Agent: {came.target[1:]}\r\n".encode() not in came.head:
            self.wrong.append(came.target)
        return answer(came)


def test_two_sets_of_options_by_turns(raw: RawServer, driven: Driven) -> None:
    """One handle of libcurl serves both."""
    agents = Agents(raw)
    for number in range(10):
        into = Into(0, 1000)
        driven.start(agents.request(f"agent-{number % 2}"), into)
        driven.until_ended(into)
        into.check_right()
    assert agents.wrong == []


def test_more_sets_of_options_than_are_kept(raw: RawServer, driven: Driven) -> None:
    """Their numbers wrap."""
    agents = Agents(raw)
    names = [f"agent-{number}" for number in range(2 * OPTIONS_KEPT + 7)]
    for _ in range(2):
        intos = [Into(0, 1000) for _ in names]
        for name, into in zip(names, intos, strict=True):
            driven.start(agents.request(name), into)
        driven.until_ended(*intos)
        for into in intos:
            into.check_right()
    assert agents.wrong == []


def test_orders_wait_for_a_process_that_is_stopped(raw: RawServer, driven: Driven) -> None:
    """With options that it lacks."""
    agents = Agents(raw)
    intos = [Into(0, 1000)]
    driven.start(agents.request("known"), intos[0])
    driven.until_ended(*intos)
    os.kill(driven.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, driven.pid, os.WSTOPPED | os.WNOWAIT)
    number = 0
    while not driven.downloader.is_full:
        number += 1
        intos.append(Into(0, 1000))
        get = agents.request("known" if number % 3 else f"new-{number}-" + "x" * 4000)
        driven.start(get, intos[-1])
        driven.downloader.turn()
    for name in ("known", "last", "known"):
        intos.append(Into(0, 1000))
        driven.start(agents.request(name), intos[-1])
    for _ in range(STALLED_TURNS):
        driven.downloader.turn()
        assert driven.downloader.is_full
    os.kill(driven.pid, signal.SIGCONT)
    driven.until_ended(*intos)
    for into in intos:
        into.check_right()
    assert agents.wrong == []
    assert len(raw.requests) == len(intos)


def test_credentials_are_on_no_command_line(raw: RawServer, driven: Driven) -> None:
    """Those of a signature, which libcurl has as options, are sent."""
    go_on, heads = threading.Event(), list[bytes]()

    def script(came: Came) -> bool:
        heads.append(came.head)
        assert go_on.wait(LIMIT_S)
        return answer(came)

    raw.script = script
    get, into = downloads.request(raw, 0, 1000), Into(0, 1000)
    options = {**get.options, pycurl.USERNAME: "a-user", pycurl.PASSWORD: "a-password"}
    driven.start(HttpRequest(get.url, get.headers, get.size, options, get.answer), into)
    driven.downloader.turn()
    driven.until(lambda: bool(heads), "the request arrives")
    for name in ("cmdline", "environ"):
        found = Path(f"/proc/{driven.pid}/{name}").read_bytes()
        assert b"connectors.download.process" in found or name == "environ"
        assert b"a-user" not in found
        assert b"a-password" not in found
    go_on.set()
    driven.until_ended(into)
    into.check_right()
    basic = base64.b64encode(b"a-user:a-password")
    assert b"Authorization: Basic " + basic in heads[0]


def test_the_process_may_use_all_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although the thread that starts it is kept on one."""
    before = os.sched_getaffinity(0)
    assert before == downloader_module._CPUS
    os.sched_setaffinity(0, {min(before)})
    try:
        driven = Driven()
        assert os.sched_getaffinity(driven.pid) == before
        driven.close()
    finally:
        os.sched_setaffinity(0, before)
