"""Machines with networks of their own: one network namespace each, joined by a bridge, which can be
cut off from each other. Packets that may not pass are lost without a word, as in a partition: each
side has a wrong hardware address of the other. For root.

    with Networks(3) as networks:
        networks.cut(0, 1)
        networks.heal()
"""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterable

COMMAND_LIMIT_S = 20.0
NOWHERE = "02:00:00:00:00:01"  # the hardware address of nobody
_made = itertools.count(1)


def ip(*arguments: str, check: bool = True) -> None:
    """`ip ARGUMENTS`. Raises CalledProcessError with what it said."""
    command = ["ip", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=COMMAND_LIMIT_S, check=False
    )
    if check and done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)


class Networks:
    """`count` of them, and the address of this process's own network (`here`) among theirs."""

    def __init__(self, count: int) -> None:
        number = next(_made)
        self._tag = f"{os.getpid() % 100000}{chr(ord('a') + number % 26)}"
        self._subnet = f"10.{64 + os.getpid() % 128}.{number % 256}"
        self._count = count
        self._cuts: set[tuple[int, int]] = set()
        self._cut_from_here: set[int] = set()

    @property
    def here(self) -> str:
        return f"{self._subnet}.1"

    def address(self, number: int) -> str:
        return f"{self._subnet}.{10 + number}"

    def enter(self, number: int) -> list[str]:
        """The start of a command that runs in a network (its mounts are seen everywhere)."""
        return ["nsenter", f"--net=/run/netns/{self._name(number)}"]

    def _name(self, number: int) -> str:
        return f"cachefs{self._tag}{number}"

    @property
    def _bridge(self) -> str:
        return f"cfs{self._tag}"

    def __enter__(self) -> Networks:
        try:
            ip("link", "add", self._bridge, "type", "bridge")
            ip("addr", "add", f"{self.here}/24", "dev", self._bridge)
            ip("link", "set", self._bridge, "up")
            for number in range(self._count):
                self._make(number)
        except BaseException:
            self.close()
            raise
        return self

    def _make(self, number: int) -> None:
        name, port = self._name(number), f"cv{self._tag}{number}"
        ip("netns", "add", name)
        ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("link", "set", port, "master", self._bridge, "up")
        ip("-n", name, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "link", "set", "eth0", "up")

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent. What still runs there loses its network."""
        for number in range(self._count):
            ip("netns", "del", self._name(number), check=False)
        ip("link", "del", self._bridge, check=False)

    def cut(self, number: int, others: Iterable[int]) -> None:
        """Nothing passes between a network and these others any more, in either direction."""
        for other in others:
            for one, far in ((number, other), (other, number)):
                self._cuts.add((one, far))
                where = [self.address(far), "lladdr", NOWHERE, "nud", "permanent", "dev", "eth0"]
                ip("-n", self._name(one), "neigh", "replace", *where)

    def cut_from_here(self, number: int) -> None:
        """Nothing passes from a network to this process's own any more. It is told nothing."""
        where = [self.here, "lladdr", NOWHERE, "nud", "permanent", "dev", "eth0"]
        ip("-n", self._name(number), "neigh", "replace", *where)
        self._cut_from_here.add(number)

    def heal(self) -> None:
        """Everything passes again."""
        for one, far in self._cuts:
            ip("-n", self._name(one), "neigh", "del", self.address(far), "dev", "eth0")
        self._cuts.clear()
        for number in self._cut_from_here:
            ip("-n", self._name(number), "neigh", "del", self.here, "dev", "eth0")
        self._cut_from_here.clear()
