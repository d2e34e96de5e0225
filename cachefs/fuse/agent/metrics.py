"""The metrics of an agent: Prometheus reads the agent's counters."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from cachefs.fuse.agent.facts import AgentFacts


class AgentCollector:
    """Collects the counters of one agent. Threads may share this."""

    def __init__(self, facts: AgentFacts) -> None:
        self._facts = facts

    def collect(self) -> Iterator[Metric]:
        facts = self._facts
        yield GaugeMetricFamily(
            "cachefs_agent_mounts", "Mounts that the node's holder has.", facts.mounts
        )
        started = CounterMetricFamily(
            "cachefs_agent_takeovers", "Supervisors that this agent started.", labels=["cause"]
        )
        for cause, count in dict(facts.takeovers).items():
            started.add_metric([cause], count)
        yield started
        yield CounterMetricFamily(
            "cachefs_agent_deposits", "Mounts that were deposited, also again.", facts.deposits
        )
        yield GaugeMetricFamily(
            "cachefs_agent_longest_pause_seconds",
            "Longest time between the end of a claim and this agent's next one.",
            facts.longest_pause_s,
        )
        yield CounterMetricFamily(
            "cachefs_agent_aborted_mounts", "Mounts that nothing could serve.", facts.aborted
        )


def registry_of(facts: AgentFacts) -> CollectorRegistry:
    """Returns a registry with the metrics of one agent."""
    registry = CollectorRegistry()
    registry.register(AgentCollector(facts))
    return registry
