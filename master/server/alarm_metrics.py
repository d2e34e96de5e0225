"""The metrics of what goes wrong in a cluster: the problems of `cachefs health`, quotas and
certificates."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from master.server import alarms


class AlarmCollector(Collector):
    """The collector of a master. `document` returns that of `Calls.health_facts`."""

    def __init__(
        self, document: Callable[[], dict[str, Any]], clock: Callable[[], float] = time.time
    ) -> None:
        self._document = document
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        document = self._document()
        yield self._problems(document)
        yield _certificates(document)
        yield from _quotas(document)

    def _problems(self, document: Mapping[str, Any]) -> Metric:
        text = "Problems of the cluster by code, as of cachefs health."
        problems = GaugeMetricFamily("cachefs_master_problems", text, labels=["code"])
        for code, count in alarms.problem_counts(document, self._clock()).items():
            problems.add_metric([code], count)
        return problems


def _certificates(document: Mapping[str, Any]) -> Metric:
    name = "cachefs_master_certificate_expiry_timestamp_seconds"
    text = "When the certificate of a server expires."
    expiries = GaugeMetricFamily(name, text, labels=["server"])
    for server, expires_at_s in alarms.certificate_expiries(document):
        expiries.add_metric([server], expires_at_s)
    return expiries


def _quotas(document: Mapping[str, Any]) -> Iterator[Metric]:
    limits = GaugeMetricFamily("cachefs_master_quota_bytes", "Quotas.", labels=["path"])
    used = GaugeMetricFamily("cachefs_master_quota_used_bytes", "Their use.", labels=["path"])
    for quota in document["quotas"]:
        limits.add_metric([quota["path"]], quota["quota_bytes"])
        used.add_metric([quota["path"]], quota["used_bytes"])
    yield from (limits, used)
