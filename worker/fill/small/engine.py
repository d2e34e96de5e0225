"""The process that reads small files (`worker.fill.small.process`), as the server has it: started
when it is needed, told what to read, and heard. Owned by the loop, but for `launch` and `close`.

Every read is answered exactly once: by the process, or by its end. Until that, which is seen by the
end of the socket, it may be writing to the files that it was given. One that does not answer is
killed, and another is not started at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import logging
import mmap
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Hashable
from typing import Final, Protocol

import msgspec

import cachefs
from connectors.fetch.request import Get as Request
from worker.fill.small.lifeline import Tied
from worker.fill.small.wire import (
    MESSAGE_BYTES,
    MOST_OF_ONE,
    WORDS_BYTES,
    Get,
    Got,
    decode_got,
    encode,
)

log = logging.getLogger(__name__)

MODULE: Final = "worker.fill.small.process"
AGAIN_S: Final = 0.005  # the socket is full
READ_AT_ONCE: Final = 8  # datagrams, then others have their turn
PING_S: Final = 2.0  # of silence
HANG_S: Final = 8.0  # without an answer to that, and it is killed
RESTART_S: Final = 2.0  # between two starts, twice as long each time, at most:
MOST_RESTART_S: Final = 300.0  # and who has lived as long is started again at once
KEPT_ENV: Final = "LC_ALL", "LD_LIBRARY_PATH", "PATH"
_CPUS: Final = os.sched_getaffinity(0)  # before this process keeps its threads together

Heard = Callable[[Got | None], None]  # None: the process has ended


class Child(Protocol):
    """A process that was started, or something in its place."""

    def kill(self) -> None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...


Spawn = Callable[[socket.socket, int], Child]
"""Starts it with its end of the socket and the descriptor of the words; both stay the caller's.
Raises OSError."""


def spawn(sock: socket.socket, words: int) -> Child:
    """The process, on all CPUs, with nothing of this one but the two descriptors; it never outlives
    this one."""
    fds = sock.fileno(), words
    child = Tied(
        [sys.executable, "-I", "-m", MODULE, *map(str, fds), cachefs.__version__],
        env={name: os.environ[name] for name in KEPT_ENV if name in os.environ},  # no credentials
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=fds,
    )
    # It starts as the thread that started it: on the one CPU of all that run Python here.
    with contextlib.suppress(OSError):
        os.sched_setaffinity(child.pid, _CPUS)
        os.sched_setscheduler(child.pid, os.SCHED_OTHER, os.sched_param(0))
    return child


class Run:
    """One life of the process."""

    def __init__(self, spawn: Spawn) -> None:
        """Raises OSError."""
        kind = socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC
        with contextlib.ExitStack() as always, contextlib.ExitStack() as failed:
            words = os.memfd_create("cachefs-small", os.MFD_CLOEXEC)
            always.callback(os.close, words)
            os.ftruncate(words, WORDS_BYTES)
            self._memory = mmap.mmap(words, WORDS_BYTES)
            failed.callback(self._memory.close)
            self.sock, theirs = socket.socketpair(socket.AF_UNIX, kind)
            always.enter_context(theirs)
            failed.callback(self.sock.close)
            self.child = spawn(theirs, words)
            failed.pop_all()
        self._words = memoryview(self._memory).cast("Q")
        self.sock.setblocking(False)
        self.is_ready = False  # it has told something, and was not killed
        self.is_killed = False
        self.has_ended = False
        self._writes = 0
        self.heard_s = 0.0
        self.pinged_s: float | None = None  # and nothing was heard since

    @property
    def at_disk(self) -> int:
        """The number of the read whose file is being written; 0: none."""
        return self._words[0]

    def has_written(self) -> bool:
        """Is it at a write, or was it since the last call? Then it is the disk that takes long."""
        before, self._writes = self._writes, self._words[1]
        return self._words[0] != 0 or self._writes != before

    def close(self) -> None:
        """After its end."""
        self.has_ended, self.is_ready = True, False
        self.sock.close()
        self._words.release()
        self._memory.close()
        self.child.kill()

    def kill(self) -> None:
        self.is_killed, self.is_ready = True, False
        self.child.kill()


class Engine:
    """See the module."""

    def __init__(
        self,
        spawn: Spawn = spawn,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spawn = spawn
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()  # of the next four
        self._launched: Run | None = None
        self._again_s = 0.0  # no start before
        self._pause_s = RESTART_S  # after the next
        self._closed = False
        self._run: Run | None = None  # that is heard
        self._numbers = itertools.count(1)
        self._heard: dict[int, Heard] = {}
        self._outbox: list[tuple[Get, int]] = []
        self._ending: list[Child] = []  # to be reaped

    @property
    def is_ready(self) -> bool:
        return self._run is not None and self._run.is_ready

    @property
    def in_flight(self) -> int:
        return len(self._heard)

    @property
    def is_launched(self) -> bool:
        """Is there one, ready or not?"""
        return self._launched is not None

    @property
    def may_launch(self) -> bool:
        """Is there one that is not about to end, or may one be started now?"""
        run = self._launched
        return self._clock() >= self._again_s if run is None else not run.is_killed

    def launch(self) -> bool:
        """Starts the process unless there is one. For threads: it takes milliseconds. False where
        it may not. Raises OSError."""
        with self._lock:
            if self._closed or not self.may_launch:
                return False
            if self._launched is None:
                now = self._clock()
                if now - self._again_s >= MOST_RESTART_S:
                    self._pause_s = RESTART_S
                self._again_s = now + self._pause_s
                self._pause_s = min(2 * self._pause_s, MOST_RESTART_S)
                self._launched = Run(self._spawn)
        return True

    def attend(self) -> bool:
        """Hears from now on what was launched. False where that has ended meanwhile."""
        run = self._launched
        if run is not None and run is not self._run and not self._closed:
            self._run = run
            run.heard_s = self._clock()
            self._loop.add_reader(run.sock, self._read, run)
        return self._run is not None

    def start(self, request: Request, fd: int, heard: Heard) -> None:
        """Reads a file into `fd`, which stays the caller's and open until `heard` is called. Only
        while it `is_ready`."""
        number = next(self._numbers)
        self._heard[number] = heard
        if not self._outbox:
            self._loop.call_soon(self._send)
        self._outbox.append((Get(number, request), fd))

    def at_disk(self) -> list[Hashable]:
        """The write to the disk that is under way, by a name that no other has."""
        number = self._run.at_disk if self._run is not None else 0
        return [(self, number)] if number else []

    def look(self) -> None:
        """Now and then, in the loop: does it answer?"""
        self._ending = [child for child in self._ending if child.poll() is None]
        run, now = self._run, self._clock()
        if run is not None:
            self._read(run)  # this loop itself may have stood still
        if run is None or run.is_killed or run.has_ended:
            return
        if run.has_written():
            run.heard_s, run.pinged_s = now, None
        elif run.pinged_s is None and now - run.heard_s >= PING_S:
            run.pinged_s = now
            with contextlib.suppress(OSError):  # full, so that it is about to be asked anyhow
                run.sock.send(encode([]))
        elif run.pinged_s is not None and now - run.pinged_s >= HANG_S:
            log.warning("the process that reads small files does not answer")
            run.kill()

    def kill(self) -> None:
        """What is under way ends, and is heard of, as soon as the process has."""
        if self._run is not None:
            self._run.kill()

    def _send(self) -> None:
        run = self._run
        while run is not None and self._outbox and not run.is_killed:
            part, data = self._next()
            try:
                socket.send_fds(run.sock, [data], [fd for _, fd in part])
            except BlockingIOError:
                self._loop.call_later(AGAIN_S, self._send)
                return
            except OSError as err:
                if err.errno not in (errno.EPIPE, errno.ECONNRESET):
                    log.warning("the process that reads small files: %s", err.strerror)
                run.kill()  # its end is about to be seen
                return
            del self._outbox[: len(part)]

    def _next(self) -> tuple[list[tuple[Get, int]], bytes]:
        """Returns the reads of the next datagram, and the datagram. The process reads no larger
        one: session tokens may be long."""
        part = self._outbox[:MOST_OF_ONE]
        while True:
            data = encode([get for get, _ in part])
            if len(data) <= MESSAGE_BYTES or len(part) == 1:
                return part, data
            part = part[: len(part) // 2]

    def _read(self, run: Run) -> None:
        for _ in range(READ_AT_ONCE):
            try:
                data = run.sock.recv(MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                return self._ended(run)
            self._heard_of(run, data)

    def _heard_of(self, run: Run, data: bytes) -> None:
        run.heard_s, run.pinged_s = self._clock(), None
        run.is_ready = not run.is_killed
        try:
            gots = decode_got(data)
        except msgspec.DecodeError:
            return self._nonsense(run)
        for got in gots:
            heard = self._heard.pop(got.number, None)
            if heard is None:
                return self._nonsense(run)
            self._loop.call_soon(heard, got)  # one that raises keeps nothing from others

    def _nonsense(self, run: Run) -> None:
        log.error("the process that reads small files tells what nobody asked")
        run.kill()  # reads that are lost so are told of its end

    def _ended(self, run: Run) -> None:
        """The process has, or is about to: it holds nothing any more."""
        if run.has_ended:
            return
        self._run = None
        self._ending.append(run.child)
        with self._lock:
            self._launched = None
            closed = self._closed
        heard, self._heard = self._heard, {}
        self._outbox.clear()
        self._loop.remove_reader(run.sock)
        run.close()
        if not closed:
            log.warning("the process that reads small files has ended; threads read them for now")
        for tell in heard.values():
            self._loop.call_soon(tell, None)

    def close(self, wait_s: float) -> bool:
        """For another thread than the loop's. False when the process has not ended after `wait_s`.
        What is under way is heard of in the loop, soon afterwards. Idempotent."""
        with self._lock:
            self._closed = True
            run = self._launched
        children = [*self._ending]
        if run is not None:
            run.child.kill()
            children.append(run.child)
        try:
            for child in children:
                child.wait(wait_s)
        except subprocess.TimeoutExpired:
            return False
        if run is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._ended, run)
        return True
