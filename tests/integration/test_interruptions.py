"""Calls of the library that a signal handler interrupts, at every place where CPython runs one.

Afterwards no descriptor is open that was not before, the server has no file open for the session,
and the next call gets its own replies, on the connection that was there.
"""

from __future__ import annotations

import concurrent.futures
import errno
import gc
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cachefs.core import messages as m
from cachefs.library import node_session
from cachefs.library.calls import call
from cachefs.library.library import Located
from cachefs.library.mount_table import MountTable
from cachefs.library.source import ByteRange, Source
from cachefs.library.tree import Tree
from cachefs.trainers.manifest import Manifest
from tests.services.interruptions import Point, interrupt, points_of
from tests.services.scripted_node import NAMES, ScriptedDialer, body_of, scripted_node

PATHS = [name.encode() for name in NAMES]
BODIES = [body_of(name) for name in NAMES]
MOST_S = 10.0  # of the call after an interruption


def read(source: Source) -> None:
    assert source.read_files(PATHS) == BODIES


def read_ranges(source: Source) -> None:
    got = source.read_all([ByteRange(path, 5, -5) for path in PATHS])
    assert got == [body[5:-5] for body in BODIES]


def open_partial(source: Source) -> None:
    open_and_read(source, "partial")


def open_segments(source: Source) -> None:
    open_and_read(source, "segments")


def open_bytes(source: Source) -> None:
    open_and_read(source, "bytes")


def open_and_read(source: Source, name: str) -> None:
    file = source.open(name.encode())
    try:
        assert file.pread(10, 5) == body_of(name)[5:15]
        assert file.pread(9999, 0) == body_of(name)
        file.give_back_if_idle()
        assert file.pread(9999, 1) == body_of(name)[1:]
    finally:
        file.close()


def open_all(source: Source) -> None:
    for file in source.open_all(PATHS):
        file.close()  # type: ignore[union-attr]


def list_root(source: Source) -> None:
    assert source.list_all([b""])


def connect(source: Source) -> None:
    source.close()
    read(source)


CALLS = (
    read, read_ranges, open_partial, open_segments, open_bytes, open_all, list_root, connect,
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def small_heap() -> None:
    """Keeps what earlier tests left out of the collections, of which these tests make thousands."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def dialer(tmp_path: Path) -> Iterator[ScriptedDialer]:
    with scripted_node(tmp_path) as made:
        yield made


@pytest.fixture
def source(dialer: ScriptedDialer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Source]:
    monkeypatch.setattr(node_session, "CALL_DEADLINE_S", MOST_S)
    made = Source(dialer)
    yield made
    made.close()


@pytest.fixture
def swallowed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The finalisers in which an exception was raised: CPython passes it to nobody."""
    found: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda one: found.append(repr(one.object)))
    return found


def descriptors() -> Counter[str]:
    found: Counter[str] = Counter()
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[os.readlink(f"/proc/self/fd/{fd}").partition(":[")[0]] += 1
        except FileNotFoundError:  # of the listing itself
            continue
    return found


def settle(source: Source) -> Any:
    """Makes the next call. Returns what the session has open at the server, after it."""
    began_s = time.monotonic()
    assert source.read_files([b"bytes"]) == [body_of("bytes")]
    opened = source.session.ask(m.Status(), m.StatusReply).status["opened"]
    assert time.monotonic() - began_s < MOST_S
    return opened


def interrupt_everywhere(
    source: Source, act: Callable[[], None], swallowed: list[str]
) -> Iterator[Point]:
    """Yields each place after the call was interrupted there."""
    settle(source)
    source.names.invalidate_everything()
    for point in points_of(act):
        source.names.invalidate_everything()
        swallowed.clear()
        assert interrupt(act, point) or swallowed, f"lost at {point}"
        yield point


@pytest.mark.parametrize("call", CALLS)
def test_an_interrupted_call_leaves_nothing(
    call: Callable[[Source], None], source: Source, swallowed: list[str]
) -> None:
    """[S-library-signals]"""
    settle(source)
    before, count = descriptors(), 0
    for point in interrupt_everywhere(source, lambda: call(source), swallowed):
        assert settle(source) == [], point
        left = descriptors() - before  # what earlier tests have left may end meanwhile
        assert not left, (str(point), left)
        count += 1
    assert count > 100


def test_other_threads_of_the_connection_go_on(source: Source, swallowed: list[str]) -> None:
    """Wherever the thread is interrupted that reads the socket for the others."""
    ended = threading.Event()

    def keep_reading() -> float:
        longest_s = 0.0
        while not ended.is_set():
            began_s = time.monotonic()
            assert source.read_files(PATHS[2:]) == BODIES[2:]
            longest_s = max(longest_s, time.monotonic() - began_s)
        return longest_s

    settle(source)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        others = [pool.submit(keep_reading) for _ in range(2)]
        try:
            for point in points_of(lambda: read(source)):
                if "shared_socket" in point.code.co_filename:
                    swallowed.clear()
                    assert interrupt(lambda: read(source), point) or swallowed, point
        finally:
            ended.set()
        assert max(one.result(MOST_S) for one in others) < MOST_S


class OneSource:
    """A library with one source, and the table of mounts."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._mounts = MountTable()

    @property
    def version(self) -> int:
        self._mounts.current()
        return self._mounts.version

    def locate(self, url: str, settings: object) -> Located:
        return Located(self._source, b"")

    def close(self) -> None:
        self._mounts.close()


def test_a_handler_that_calls_the_library_does_not_wait(source: Source) -> None:
    """[S-library-signals] It gets the bytes, or EDEADLK where the call that it interrupted would
    wait for itself. The interrupted call gets its own."""
    library: Any = OneSource(source)
    tree = Tree("/scripted", {}, lambda: library)
    handled = refused = 0

    def read_and_close() -> None:
        call(source.close)
        read_tree()

    def read_tree() -> None:
        call(source.names.invalidate_everything)
        assert tree.read_batch(NAMES) == BODIES
        with tree.open("segments") as file:
            assert file.read() == body_of("segments")

    def handle() -> None:
        nonlocal refused
        try:
            assert tree.read("bytes") == body_of("bytes")
        except OSError as err:
            if (err.errno, err.filename) != (errno.EDEADLK, "/scripted"):
                raise
            refused += 1

    def gives_up(*_: object) -> None:
        raise AssertionError("it waits")

    read_tree()
    before = signal.signal(signal.SIGALRM, gives_up)
    try:
        for point in points_of(read_and_close):
            signal.alarm(int(2 * MOST_S))
            handled += interrupt(read_and_close, point, handle)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        library.close()
    assert handled > refused > 100
    read_tree()


def test_an_interrupted_look_at_the_mounts_is_repeated(swallowed: list[str]) -> None:
    """Also the first one, while the table is parsed."""

    def look() -> None:
        table = MountTable()
        tables[:] = [table]
        assert table.current().at("/") is not None

    tables: list[MountTable] = []
    before = descriptors()
    for point in points_of(look):
        swallowed.clear()
        assert interrupt(look, point) or swallowed, point
        for table in tables:
            assert table.current().at("/") is not None, point
            table.close()
        tables.clear()
        gc.collect()
        assert not descriptors() - before, point


def test_an_interrupted_manifest_is_built_again(tmp_path: Path, swallowed: list[str]) -> None:
    """The lock of the builder is free, and no table is in use."""
    (tmp_path / "data" / "a").mkdir(parents=True)
    for name in ("a/x", "y"):
        (tmp_path / "data" / name).write_bytes(b"1")

    def build() -> None:
        assert len(Manifest(tmp_path / "data", home=str(tmp_path / "home"))) == 2

    build()
    gc.collect()
    before = descriptors()
    for point in points_of(build):
        swallowed.clear()
        assert interrupt(build, point) or swallowed, point
        build()
        gc.collect()
        assert not descriptors() - before, point
