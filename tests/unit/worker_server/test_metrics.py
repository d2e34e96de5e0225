"""What a node tells Prometheus: each figure of its status under its name."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry

from cachefs.core.histogram import Histogram
from worker.metrics import NodeCollector


def status_tree() -> dict[str, Any]:
    took = Histogram()
    took.observe(0.02)
    tier = {"path": "/c", "state": "degraded", "used_bytes": 5, "limit_bytes": 10, "files": 2}
    cache = {
        "hits": 4, "misses": 3, "hit_bytes": 700, "peer_bytes": 60, "origin_bytes": 50,
        "origin_requests": 2, "served_requests": 1, "served_bytes": 40, "fill_s": took.status(),
        "fills_in_flight": 1, "refused": 6, "bad_pages": 7, "errors": {"timeout": 8},
        "evicted_files": {"room": 9}, "evicted_bytes": 900, "tiers": [tier],
        "memory": {"limit_bytes": 1000, "used_bytes": 100},
    }  # fmt: skip
    mount = {"mountpoint": "/mnt", "counters": {"reads": 11}}
    loads = [{"state": "running"}, {"state": "failed"}]
    return {"cache": cache, "passthrough_bytes": 600, "mounts": [mount, {}], "loads": loads}


def test_every_figure_has_its_name() -> None:
    registry = CollectorRegistry()
    registry.register(NodeCollector(status_tree))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"cachefs_{name}", labels)

    sources = ("passthrough", "local", "peer", "origin")
    found = [value("worker_bytes_total", source=source) for source in sources]
    assert found == [600, 100, 60, 50]
    assert value("worker_fill_seconds_count") == 1
    assert value("worker_fill_seconds_bucket", le="0.01") == 0
    assert value("worker_fill_seconds_bucket", le="0.025") == 1
    assert value("worker_errors_total", code="timeout") == 8
    assert value("worker_evicted_files_total", reason="room") == 9
    assert value("worker_tier_used_bytes", path="/c") == 5
    assert value("worker_tier_state", path="/c", state="degraded") == 1
    assert value("worker_tier_state", path="/c", state="normal") == 0
    assert value("worker_memory_bytes", kind="limit") == 1000
    assert value("worker_loads") == 1
    assert value("client_events_total", mountpoint="/mnt", event="reads") == 11
