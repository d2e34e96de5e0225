"""What a controller counts, and its page for Prometheus. Threads may share this."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from cachefs.kube.status import Phase

KINDS: Final = ("Dataset", "Pod", "PersistentVolumeClaim", "PersistentVolume")
RESULTS: Final = ("ok", "waits")


def _unhandled() -> collections.Counter[tuple[str, str]]:
    """Returns the first zeros, so that `increase` sees the first event."""
    return collections.Counter({(kind, result): 0 for kind in KINDS for result in RESULTS})


@dataclass
class Facts:
    """The counts. `phases`: Datasets by phase. `handled`: objects by kind and result."""

    is_leader: bool = False
    is_master_away: bool = False
    phases: dict[Phase, int] = field(default_factory=lambda: dict.fromkeys(Phase, 0))
    waiting_pods: int = 0
    opened_gates: int = 0
    provisioned: int = 0
    queued: int = 0
    handled: collections.Counter[tuple[str, str]] = field(default_factory=_unhandled)


class OperatorCollector:
    """Collects the counts of one controller."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def collect(self) -> Iterator[Metric]:
        facts = self._facts
        yield _gauge("leader", "1 for the replica that acts.", facts.is_leader)
        yield _gauge("master_away", "1 while the master does not answer.", facts.is_master_away)
        yield _gauge("waiting_pods", "Pods whose gate is shut.", facts.waiting_pods)
        yield _gauge("queued", "Objects that wait to be looked at.", facts.queued)
        yield _counter("opened_gates", "Pods that were let go.", facts.opened_gates)
        yield _counter("provisioned_volumes", "Volumes made for claims.", facts.provisioned)
        datasets = GaugeMetricFamily(
            "cachefs_operator_datasets", "Datasets by phase.", labels=["phase"]
        )
        for phase, count in dict(facts.phases).items():
            datasets.add_metric([phase], count)
        yield datasets
        handled = CounterMetricFamily(
            "cachefs_operator_handled", "Objects looked at.", labels=["kind", "result"]
        )
        for (kind, result), count in dict(facts.handled).items():
            handled.add_metric([kind, result], count)
        yield handled


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"cachefs_operator_{name}", text, value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"cachefs_operator_{name}", text, value)


def registry_of(facts: Facts) -> CollectorRegistry:
    """Returns a registry with the metrics of one controller."""
    registry = CollectorRegistry()
    registry.register(OperatorCollector(facts))
    return registry
