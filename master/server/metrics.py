"""The master's metrics, collected at each scrape. docs/metrics.md lists them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from cachefs.core.jobs import JobState
from master.server.call_metrics import CallMetrics


class MasterCollector(Collector):
    """The collector of a master. `status` returns the values of `Calls.status`."""

    def __init__(self, status: Callable[[], dict[str, Any]], tally: CallMetrics) -> None:
        self._status = status
        self._tally = tally

    def collect(self) -> Iterable[Metric]:
        status = self._status()
        yield from self._calls()
        yield from _ring(status)
        yield from _names(status)
        yield from _jobs(status["jobs"])
        yield from _sources(status["sources"])
        yield from _walks(status["sources"])

    def _calls(self) -> Iterator[Metric]:
        tally = self._tally
        yield _labelled("cachefs_master_calls", "Calls answered.", "call", tally.calls)
        text = "Calls that failed, by the code of the error."
        yield _labelled("cachefs_master_failures", text, "code", tally.failures)
        took = tally.took_s.status()
        yield HistogramMetricFamily(
            "cachefs_master_call_seconds",
            "Seconds that calls took, without those that wait for news.",
            buckets=took["buckets"],
            sum_value=took["sum"],
        )
        text = "Calls being answered now."
        yield GaugeMetricFamily("cachefs_master_calls_in_flight", text, tally.in_flight)


def _ring(status: Mapping[str, Any]) -> Iterator[Metric]:
    workers = GaugeMetricFamily("cachefs_master_workers", "Workers by state.", labels=["state"])
    for state, count in status["workers"].items():
        workers.add_metric([state], count)
    yield workers
    for name, text, value in (
        ("epoch", "The epoch of the placement.", status["epoch"]),
        ("members", "Workers that own blocks.", status["members"]),
        ("settled", "1 while no blocks move to new owners.", status["settled"]),
        ("polls", "Questions that wait for news.", status["queues"]["polls"]),
        ("walks", "Walks under way.", status["queues"]["walks"]),
    ):
        yield GaugeMetricFamily(f"cachefs_master_{name}", text, float(value))


def _names(status: Mapping[str, Any]) -> Iterator[Metric]:
    text = "Names in the store."
    yield GaugeMetricFamily("cachefs_master_names", text, status["names"])
    text = "Keys of origins that cannot be names of files."
    yield GaugeMetricFamily("cachefs_master_hidden_keys", text, status["hidden_keys"])
    for name, text, value in (
        ("events", "Invalidations so far.", status["sequence"]),
        ("listings", "Listings of origins' directories.", status["listings"]),
        ("stats", "Single names asked of origins.", status["stats"]),
    ):
        yield CounterMetricFamily(f"cachefs_master_{name}", text, value)


def _jobs(counts: Mapping[str, int]) -> Iterator[Metric]:
    jobs = GaugeMetricFamily("cachefs_master_jobs", "Load jobs by state.", labels=["state"])
    for state in JobState:
        jobs.add_metric([state.value], counts[state.value])
    yield jobs
    text = "Tasks of load jobs that workers have."
    yield GaugeMetricFamily("cachefs_master_tasks", text, counts["tasks"])


def _sources(sources: Iterable[Mapping[str, Any]]) -> Iterator[Metric]:
    down = GaugeMetricFamily("cachefs_master_origin_down", "1: does not answer.", labels=["path"])
    text = "Failed questions of an origin."
    failed = CounterMetricFamily("cachefs_master_origin_errors", text, labels=["path"])
    text = "Names, or directories, that the store reported."
    pushed = CounterMetricFamily("cachefs_master_pushed", text, labels=["path"])
    text = "When the store reported the last one."
    last = GaugeMetricFamily("cachefs_master_pushed_timestamp_seconds", text, labels=["path"])
    text = "Until when every change of the store is known to have been reported."
    name = "cachefs_master_feed_current_timestamp_seconds"
    current = GaugeMetricFamily(name, text, labels=["path"])
    text = "1: the reports of the store cannot be read."
    broken = GaugeMetricFamily("cachefs_master_feed_failed", text, labels=["path"])
    for source in sources:
        path = [source["path"]]
        down.add_metric(path, float(source["origin_down"]))
        failed.add_metric(path, source["origin_errors"])
        pushed.add_metric(path, source["pushed"])
        last.add_metric(path, source["pushed_at"])
        current.add_metric(path, source["feed_current_at"])
        broken.add_metric(path, float(bool(source["feed_error"])))
    yield from (down, failed, pushed, last, current, broken)


def _walks(sources: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    for name, text in (
        ("walks", "Complete background syncs."),
        ("directories", "Directories that background syncs compared."),
        ("changes", "Changes that background syncs found."),
        ("errors", "Directories that background syncs could not compare."),
    ):
        family = CounterMetricFamily(f"cachefs_master_background_{name}", text, labels=["path"])
        for source in sources:
            family.add_metric([source["path"]], source[f"background_{name}"])
        yield family
    text = "Seconds since the last complete background sync began."
    age = GaugeMetricFamily("cachefs_master_background_age_seconds", text, labels=["path"])
    for source in sources:
        if source["background_last_at"]:
            age.add_metric([source["path"]], max(0.0, time.time() - source["background_last_at"]))
    yield age


def _labelled(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in sorted(counts.items()):
        family.add_metric([value], count)
    return family
