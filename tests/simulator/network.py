"""Calls between processes: they take time, get lost, come twice, meet partitions and dead servers.

A lost question or answer is silence until the caller's limit, as on a connection that stalls; a
server that is not there refuses, one that dies breaks what it was asked.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from cachefs.core.errors import CacheFSError, DeadlineExceeded, Unreachable
from tests.simulator.schedule import Process, Schedule

Done = Callable[[object], None]  # the answer, or a CacheFSError


class Server(Protocol):
    """What can be called. `reply` may be used later, once."""

    process: Process

    def serve(self, request: object, reply: Done) -> None: ...


@dataclass(slots=True)
class Weather:
    """What the network does to messages. `spread_s`: the mean of what comes on top of `least_s`."""

    least_s: float = 0.0005
    spread_s: float = 0.001
    loss: float = 0.0
    twice: float = 0.0


class Call:
    """A question under way. `cancel`: nobody waits for the answer any more."""

    __slots__ = ("_done", "trouble")

    def __init__(self, done: Done) -> None:
        self._done: Done | None = done
        self.trouble = False  # something of it was lost, refused or broken

    def finish(self, answer: object) -> None:
        done, self._done = self._done, None
        if done is not None:
            self.trouble |= isinstance(answer, DeadlineExceeded | Unreachable)
            done(answer)

    def cancel(self) -> None:
        self._done = None

    @property
    def is_over(self) -> bool:
        return self._done is None


class Network:
    """`servers` by URL; `hosts` of all URLs ever used."""

    def __init__(self, schedule: Schedule, random: random.Random) -> None:
        self.weather = Weather()
        self.servers: dict[str, Server] = {}
        self.hosts: dict[str, str] = {}
        self.sent = 0
        self._schedule = schedule
        self._random = random
        self._cut: set[tuple[str, str]] = set()  # (from, to)
        self._slow_s: dict[str, float] = {}
        self._pending: dict[Process, list[Done]] = {}

    def listen(self, url: str, server: Server) -> None:
        self.servers[url] = server
        self.hosts[url] = server.process.host

    # ---- faults ----

    def cut(self, source: str, target: str) -> None:
        """Nothing arrives any more, in this direction."""
        self._cut.add((source, target))

    def heal(self) -> None:
        self._cut.clear()
        self._slow_s.clear()

    def slow(self, host: str, more_s: float) -> None:
        """All that this host sends takes so much longer."""
        self._slow_s[host] = more_s

    def died(self, process: Process) -> None:
        """What it was asked is broken off."""
        for reply in self._pending.pop(process, ()):
            reply(Unreachable("the connection broke"))

    # ---- calls ----

    def call(
        self, source: Process, url: str, request: object, done: Done, *, limit_s: float
    ) -> Call:
        """`done` hears the answer, or a CacheFSError, within `limit_s`; nothing if the caller ended
        or cancelled."""
        call = Call(done)
        source.after(limit_s, lambda: call.finish(DeadlineExceeded("no answer")))
        host = self.hosts.get(url, "nowhere")

        def ask() -> None:
            self._arrive(source, url, host, request, call)

        self._send(source.host, host, ask)
        if self.weather.twice and self._random.random() < self.weather.twice:
            self._send(source.host, host, ask)
        return call

    def _arrive(self, source: Process, url: str, host: str, request: object, call: Call) -> None:
        def answer(what: object) -> None:
            self._send(
                host,
                source.host,
                lambda: self._schedule.after(0.0, lambda: call.finish(what), source),
            )

        server = self.servers.get(url)
        if server is None or not server.process.is_alive:
            return answer(Unreachable("refused"))
        pending = self._pending.setdefault(server.process, [])
        pending.append(answer)

        def reply(what: object) -> None:
            if answer in pending:
                pending.remove(answer)
                answer(what)

        self._schedule.after(0.0, lambda: server.serve(request, reply), server.process)

    def _send(self, source: str, target: str, deliver: Callable[[], None]) -> None:
        self.sent += 1
        lost = (source, target) in self._cut or self._random.random() < self.weather.loss
        if lost and source != target:
            return
        delay_s = self.weather.least_s + self._random.random() * 2 * self.weather.spread_s
        self._schedule.after(delay_s + self._slow_s.get(source, 0.0), deliver)


def failed(answer: object) -> CacheFSError | None:
    """The error, if it is one."""
    return answer if isinstance(answer, CacheFSError) else None
