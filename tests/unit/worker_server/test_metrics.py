"""What a node tells Prometheus: each figure of its status under its name."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry

from cachefs.core.histogram import Histogram
from tests.services.metrics_page import documented, exported
from worker.metrics import NodeCollector, exposition


def status_tree() -> dict[str, Any]:
    took = Histogram()
    took.observe(0.02)
    tier = {"path": "/c", "state": "degraded", "used_bytes": 5, "limit_bytes": 10, "files": 2}
    tier["commits_waiting"] = 3
    cache = {
        "hits": 4, "misses": 3, "hit_bytes": 700, "peer_bytes": 60, "origin_bytes": 50,
        "origin_requests": 2, "fill_s": took.status(),
        "fills_in_flight": 1, "refused": 6, "bad_pages": 7, "errors": {"timeout": 8},
        "evicted_files": {"room": 9}, "evicted_bytes": 900, "tiers": [tier], "tier_bytes": 901,
        "scrubbed_bytes": 902,
        "memory": {"limit_bytes": 1000, "used_bytes": 100},
    }  # fmt: skip
    mount = {"mountpoint": "/mnt", "counters": {"reads": 11}}
    loading = {"files_in_hand": 7}
    views = {
        "covers": 4, "covered_s": 2.5, "uncovers": {"changed": 3}, "files": 12, "bytes": 9000,
        "rows": [{"state": "covered", "covers": 2}, {"state": "waiting", "covers": 0}],
    }  # fmt: skip
    return {
        "cache": cache,
        "passthrough_bytes": 600,
        "ahead_files": 3,
        "takeovers": {"/mnt": 2},
        "views": views,
        "mounts": [mount, {}],
        "sources": [{"source": "s3://b", "origin": {"connections": 12, "handshakes": 11}}],
        "loading": loading,
    }


def cluster_tree() -> dict[str, Any]:
    outcomes = ("from_cache", "brought", "not_here", "not_owner", "refused", "failed")
    origins = {"u1": {"connections": 5, "handshakes": 0}, "u2": {"connections": 6, "handshakes": 6}}
    return {
        **status_tree(),
        "sources": [{"source": "cachefs://m", "origins": origins}] * 2,
        "member": {"epoch": 5, "workers": 3},
        "serving": {"in_flight": 1, "bytes": 77, **dict.fromkeys(outcomes, 2)},
        "peers": {
            "requests": 9, "failures": 1, "cut_off": 3, "wrong_pages": 0, "hedges": 2,
            "fallbacks": 1,
        },
        "migration": {
            "settled": 4, "blocks_to_give": 6, "blocks_to_take": 7, "taken_bytes": 8,
        },
    }  # fmt: skip


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
    assert value("worker_origin_connections_total") == 12
    assert value("worker_origin_handshakes_total") == 11
    assert value("worker_moved_bytes_total") == 901
    assert value("worker_scrubbed_bytes_total") == 902
    assert value("worker_evicted_files_total", reason="room") == 9
    assert value("worker_tier_used_bytes", path="/c") == 5
    assert value("worker_tier_state", path="/c", state="degraded") == 1
    assert value("worker_tier_state", path="/c", state="normal") == 0
    assert value("worker_memory_bytes", kind="limit") == 1000
    assert value("worker_loading_files") == 7
    assert value("worker_ahead_files_total") == 3
    assert value("worker_takeovers_total", mountpoint="/mnt") == 2
    assert value("worker_views", state="covered") == 1
    assert value("worker_views", state="ready") == 0
    assert value("worker_view_files") == 12
    assert value("worker_view_bytes") == 9000
    assert value("worker_view_mounts") == 2
    assert value("worker_view_covers_total") == 4
    assert value("worker_view_uncovers_total", reason="changed") == 3
    assert value("worker_view_covered_seconds_total") == 2.5
    assert value("client_events_total", mountpoint="/mnt", event="reads") == 11


def test_each_origin_of_a_cluster_counts_once() -> None:
    registry = CollectorRegistry()
    registry.register(NodeCollector(cluster_tree))
    assert registry.get_sample_value("cachefs_worker_origin_connections_total") == 11
    assert registry.get_sample_value("cachefs_worker_origin_handshakes_total") == 6


def test_a_cluster_without_sources_has_no_connections() -> None:
    registry = CollectorRegistry()
    tree = {**cluster_tree(), "sources": [{"source": "cachefs://m", "origins": {}}]}
    registry.register(NodeCollector(lambda: tree))
    assert registry.get_sample_value("cachefs_worker_origin_connections_total") == 0


def test_the_table_in_the_documentation_is_what_is_exported() -> None:
    text, content_type = exposition(cluster_tree)()
    assert content_type.startswith("text/plain")
    for prefix in ("cachefs_worker_", "cachefs_client_"):
        assert exported(text.decode(), prefix) == documented(prefix)


def test_a_server_that_is_no_member_exports_no_ring() -> None:
    text, _ = exposition(status_tree)()
    assert b"cachefs_worker_bytes_total" in text
    assert b"cachefs_worker_epoch" not in text
