"""Policies above a million files: pin, ttl and policy set each take < 100 ms, and walk nothing. A
worker's requests about its contents cost the master < 20 us of CPU each while all files are pinned.

The names are computed and listed before the clock starts; the store is durable.
"""

from __future__ import annotations

import time

from bench import machine
from bench.harness import Lab, main, middle
from bench.http_load import Connection, ask
from bench.master_calls import BATCH, FILES, directories_of, files_of
from bench.master_process import PATH, master_process
from bench.mounts import BenchFailed
from bench.report import Result
from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.model import NamespaceId
from cachefs.core.policies import Policy

CHANGES = 20
ROUNDS = 20


def run(lab: Lab, result: Result) -> None:
    directories = lab.size(1000, 10)
    with master_process(directories, FILES) as master:
        connection = Connection(master.port)
        namespace, inos = directories_of(connection, 1)
        keys = contents(connection, namespace, files_of(connection, namespace, inos))
        ask(connection, m.SetPolicy(namespace, PATH, Policy(pin=True)))  # waits for old permissions
        table = result.table(f"{directories * FILES:,} files below the path", "change", "ms")
        slowest_ms = 0.0
        for name, policy in {
            "pin": Policy(pin=True),
            "ttl": Policy(ttl_s=86400.0),
            "policy set": Policy(admission="always"),
        }.items():
            took_ms = [change_ms(connection, namespace, policy) for _ in range(CHANGES)]
            table.add(name, middle(took_ms))
            slowest_ms = max(slowest_ms, *took_ms)
        result.bar("the slowest change", slowest_ms, 100, "ms")
        asked = result.table("asked about a thousand contents", "call", "us of CPU per content")
        for call in (c.PermitEviction(namespace, keys), c.RulesOf(namespace, keys)):
            cost_us = content_us(connection, master.pid, call)
            asked.add(type(call).__name__, cost_us)
            result.bar(type(call).__name__, cost_us, 20, "us of CPU per content")


def contents(connection: Connection, namespace: NamespaceId, files: list[int]) -> list[bytes]:
    located = ask(connection, c.Locate(namespace, files[:BATCH]))
    assert isinstance(located, c.Located)
    return [place.origin.content.key for place in located.places if place.origin is not None]


def change_ms(connection: Connection, namespace: NamespaceId, policy: Policy) -> float:
    """Returns the time of one change above all files, from the request to the reply."""
    began = time.monotonic()
    said = ask(connection, m.SetPolicy(namespace, PATH, policy))
    took_ms = (time.monotonic() - began) * 1000
    if not isinstance(said, m.PolicySet):
        raise BenchFailed("the policy was not set")
    return took_ms


def content_us(connection: Connection, pid: int, call: c.PermitEviction | c.RulesOf) -> float:
    before_s = machine.cpu_s([pid])
    for _ in range(ROUNDS):
        ask(connection, call)
    return (machine.cpu_s([pid]) - before_s) / (ROUNDS * len(call.contents)) * 1e6


if __name__ == "__main__":
    main(run)
