"""A node's metrics in the format of Prometheus, collected per request; see docs/metrics.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    PLATFORM_COLLECTOR,
    PROCESS_COLLECTOR,
    CollectorRegistry,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

TIER_STATES = ("normal", "degraded", "offline")
VIEW_STATES = ("building", "ready", "covered", "waiting", "impossible", "thawing")


class NodeCollector(Collector):
    """The collector of a node's metrics. `status` is `NodeServer.status`."""

    def __init__(self, status: Callable[[], dict[str, Any]]) -> None:
        self._status = status

    def collect(self) -> Iterable[Metric]:
        status = self._status()
        cache = status["cache"]
        yield from _reads(cache, status["passthrough_bytes"], status["ahead_files"])
        yield from _origins(status["sources"])
        yield from _fills(cache)
        yield from _evictions(cache)
        yield from _tiers(cache["tiers"])
        yield from _node(status)
        if status["views"]:
            yield from _views(status["views"])
        if "member" in status:
            yield from _cluster(status)


def _reads(cache: Mapping[str, Any], passthrough_bytes: int, ahead_files: int) -> Iterator[Metric]:
    text = (
        "Bytes read, by source: whole files passed to the kernel (passthrough), cached bytes "
        "(local), other workers (peer), origins (origin)."
    )
    reads = CounterMetricFamily("cachefs_worker_bytes", text, labels=["source"])
    reads.add_metric(["passthrough"], passthrough_bytes)
    reads.add_metric(["local"], cache["hit_bytes"] - passthrough_bytes)
    reads.add_metric(["peer"], cache["peer_bytes"])
    reads.add_metric(["origin"], cache["origin_bytes"])
    yield reads
    text = "Small files that were prefetched before they were opened."
    yield CounterMetricFamily("cachefs_worker_ahead_files", text, ahead_files)
    for name, text in (
        ("hits", "Opens of files that were complete."),
        ("misses", "Opens of files that were not."),
        ("origin_requests", "Requests to origins."),
    ):
        yield CounterMetricFamily(f"cachefs_worker_{name}", text, cache[name])


def _origins(sources: Iterable[Mapping[str, Any]]) -> Iterator[Metric]:
    origins: dict[str, Mapping[str, Any]] = {}  # each namespace of a cluster lists all of them
    for source in sources:
        if "origins" in source:  # of a cluster; may be empty
            origins.update(source["origins"])
        else:
            origins[source["source"]] = source["origin"]
    for name, text in (
        ("connections", "Connections made to origins."),
        ("handshakes", "Handshakes of TLS on these, resumed ones included."),
    ):
        count = sum(origin[name] for origin in origins.values())
        yield CounterMetricFamily(f"cachefs_worker_origin_{name}", text, count)


def _fills(cache: Mapping[str, Any]) -> Iterator[Metric]:
    took = cache["fill_s"]
    yield HistogramMetricFamily(
        "cachefs_worker_fill_seconds",
        "Seconds until the pages of one request were in the cache, waits for room included.",
        buckets=took["buckets"],
        sum_value=took["sum"],
    )
    text = "Requests to origins and peers in flight or queued."
    yield GaugeMetricFamily("cachefs_worker_fills_in_flight", text, cache["fills_in_flight"])
    text = "Fills that the cache refused."
    yield CounterMetricFamily("cachefs_worker_refused", text, cache["refused"])
    text = "Bytes that moved between the tiers of this node."
    yield CounterMetricFamily("cachefs_worker_moved_bytes", text, cache["tier_bytes"])
    text = "Bytes of complete files that the scrubber has read and compared."
    yield CounterMetricFamily("cachefs_worker_scrubbed_bytes", text, cache["scrubbed_bytes"])
    text = "Pages that did not have their checksum."
    yield CounterMetricFamily("cachefs_worker_bad_pages", text, cache["bad_pages"])
    text = "Failures by the code of the error."
    yield _labelled("cachefs_worker_errors", text, "code", cache["errors"])


def _evictions(cache: Mapping[str, Any]) -> Iterator[Metric]:
    text = "Files that lost their cached bytes, by reason."
    yield _labelled("cachefs_worker_evicted_files", text, "reason", cache["evicted_files"])
    text = "Bytes of cached files that were evicted."
    yield CounterMetricFamily("cachefs_worker_evicted_bytes", text, cache["evicted_bytes"])


def _tiers(tiers: Iterable[Mapping[str, Any]]) -> Iterator[Metric]:
    families = {
        name: GaugeMetricFamily(f"cachefs_worker_tier_{name}", text, labels=["path"])
        for name, text in (
            ("used_bytes", "Bytes that a tier takes."),
            ("limit_bytes", "Bytes that a tier may take."),
            ("files", "Files with cached bytes."),
            ("commits_waiting", "Uncommitted records of cached bytes; a SIGKILL may lose them."),
        )
    }
    text = "1 for the state that a tier is in."
    states = GaugeMetricFamily("cachefs_worker_tier_state", text, labels=["path", "state"])
    for tier in tiers:
        for name, family in families.items():
            family.add_metric([tier["path"]], tier[name])
        for state in TIER_STATES:
            states.add_metric([tier["path"], state], float(tier["state"] == state))
    yield from families.values()
    yield states


def _views(views: Mapping[str, Any]) -> Iterator[Metric]:
    text = "Directories that are frozen, by the state of their views."
    states = GaugeMetricFamily("cachefs_worker_views", text, labels=["state"])
    for state in VIEW_STATES:
        states.add_metric([state], sum(row["state"] == state for row in views["rows"]))
    yield states
    yield GaugeMetricFamily("cachefs_worker_view_files", "Files in views.", views["files"])
    yield GaugeMetricFamily("cachefs_worker_view_bytes", "Bytes of these.", views["bytes"])
    covers = sum(row["covers"] for row in views["rows"])
    yield GaugeMetricFamily("cachefs_worker_view_mounts", "Covers on mounts.", covers)
    text = "Times that a view was ready to be covered."
    yield CounterMetricFamily("cachefs_worker_view_covers", text, views["covers"])
    text = "Times that a view was uncovered, by reason."
    yield _labelled("cachefs_worker_view_uncovers", text, "reason", views["uncovers"])
    text = "Seconds in which a view covered a mount."
    yield CounterMetricFamily("cachefs_worker_view_covered_seconds", text, views["covered_s"])


def _node(status: Mapping[str, Any]) -> Iterator[Metric]:
    memory = status["cache"]["memory"]
    text = "The memory budget (limit) and the memory in use (used)."
    used = GaugeMetricFamily("cachefs_worker_memory_bytes", text, labels=["kind"])
    for kind in ("limit", "used"):
        used.add_metric([kind], memory[f"{kind}_bytes"])
    yield used
    yield GaugeMetricFamily("cachefs_worker_mounts", "Mounts served.", len(status["mounts"]))
    loading = status.get("loading", {}).get("files_in_hand", 0)
    text = "Files of load jobs in progress."
    yield GaugeMetricFamily("cachefs_worker_loading_files", text, loading)
    yield from _clients(status["mounts"])
    text = "Client processes that followed another one of their mount."
    yield _labelled("cachefs_worker_takeovers", text, "mountpoint", status["takeovers"])


def _clients(mounts: Iterable[Mapping[str, Any]]) -> Iterator[Metric]:
    text = "Events counted by the clients of mounts, as of their last report."
    counted = CounterMetricFamily("cachefs_client_events", text, labels=["mountpoint", "event"])
    for mount in mounts:
        for event, count in mount.get("counters", {}).items():
            counted.add_metric([mount["mountpoint"], event], count)
    yield counted


def _cluster(status: Mapping[str, Any]) -> Iterator[Metric]:
    member, serving, peers = status["member"], status["serving"], status["peers"]
    migration = status["migration"]
    for name, text, value in (
        ("epoch", "The epoch of this worker's view.", member["epoch"]),
        ("members", "Workers that own blocks in it.", member["workers"]),
        ("settled_epoch", "The last epoch with nothing left to move.", migration["settled"]),
        ("blocks_to_give", "Blocks to send to their owners.", migration["blocks_to_give"]),
        ("blocks_to_take", "Blocks to receive.", migration["blocks_to_take"]),
        ("serving", "Requests of other workers in flight.", serving["in_flight"]),
    ):
        yield GaugeMetricFamily(f"cachefs_worker_{name}", text, value)
    for name, text, value in (
        ("taken_bytes", "Bytes received by migration.", migration["taken_bytes"]),
        ("served_bytes", "Bytes sent to other workers.", serving["bytes"]),
        ("peer_requests", "Requests to other workers.", peers["requests"]),
        ("peer_failures", "Of these, those that failed.", peers["failures"]),
        ("peer_cut_off", "Fills by workers that did not reach the origin.", peers["cut_off"]),
        ("peer_wrong_pages", "Pages of peers with a wrong checksum.", peers["wrong_pages"]),
        ("peer_hedges", "Requests to a second worker, as the first was slow.", peers["hedges"]),
        ("peer_fallbacks", "Reads of others' blocks from the origin.", peers["fallbacks"]),
    ):
        yield CounterMetricFamily(f"cachefs_worker_{name}", text, value)
    text = "Requests of other workers for pages, by outcome."
    outcomes = ("from_cache", "brought", "not_here", "not_owner", "refused", "failed")
    counts = {outcome: serving[outcome] for outcome in outcomes}
    yield _labelled("cachefs_worker_served", text, "outcome", counts)


def exposition(status: Callable[[], dict[str, Any]]) -> Callable[[], tuple[bytes, str]]:
    """Returns the handler of `GET /metrics`, which returns the text and its content type."""
    registry = CollectorRegistry()
    for collector in (NodeCollector(status), PROCESS_COLLECTOR, PLATFORM_COLLECTOR):
        registry.register(collector)
    return lambda: (generate_latest(registry), CONTENT_TYPE_LATEST)


def _labelled(name: str, text: str, label: str, counts: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family
