"""Pods that read a volume and compare every byte, and what they saw."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from tests.kube.real.cluster import Cluster
from tests.kube.real.manifests import trainer
from tests.kube.real.reader import Results


class Longest(NamedTuple):
    """The longest steps of readers in a time, in seconds; 0 for those that are not slow."""

    open_s: float
    read_s: float


@dataclass(frozen=True)
class Span:
    """From when to when something happened, in seconds of the monotonic clock."""

    text: str
    began_s: float
    ended_s: float


class Trainers:
    """Some readers of one path."""

    def __init__(self, cluster: Cluster, namespace: str, names: list[str]) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._names = names
        self.spans: list[Span] = []

    def start(self, path: str, limit_s: float) -> None:
        """Starts the readers, and returns when each has read every file once."""
        self._cluster.apply(
            *(trainer(name, self._namespace, path, limit_s) for name in self._names)
        )
        for name in self._names:
            self._cluster.wait(f"pod/{name}", "condition=Ready", namespace=self._namespace)

    def under(self, text: str, event: Callable[[], None]) -> Span:
        """Has an event happen, and notes when."""
        began_s = time.monotonic()
        event()
        self.spans.append(Span(text, began_s, time.monotonic()))
        return self.spans[-1]

    def finish(self) -> dict[str, Results]:
        """Ends the readers, which must still be running, and returns what each saw."""
        return {name: self._finish(name) for name in self._names}

    def _finish(self, name: str) -> Results:
        os.kill(self._cluster.pid(name, "main", namespace=self._namespace), signal.SIGTERM)
        is_done = "jsonpath={.status.phase}=Succeeded"
        self._cluster.wait(f"pod/{name}", is_done, namespace=self._namespace)
        return Results(**json.loads(self._cluster.logs(name, namespace=self._namespace)))

    def delete(self) -> None:
        self._cluster.kubectl("delete", "pod", *self._names, "-n", self._namespace)


def longest(results: Results, span: Span) -> Longest:
    """Returns the longest steps that ran at some moment of a span."""
    most = {"open": 0.0, "read": 0.0}
    for kind, began_s, took_s in results.slow:
        if began_s < span.ended_s and began_s + took_s > span.began_s:
            most[kind] = max(most[kind], took_s)
    return Longest(most["open"], most["read"])
