"""The panels of the dashboard: what each shows, its unit and its queries.

`%` in a query stands for the label matchers of the dashboard's variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

MATCHERS: Final = 'job=~"$job",instance=~"$instance"'
GREEN: Final[tuple[tuple[float | None, str], ...]] = ((None, "green"),)
RED_FROM_1: Final = (*GREEN, (1.0, "red"))
RED_BELOW_1: Final[tuple[tuple[float | None, str], ...]] = ((None, "red"), (1.0, "green"))
STAT_WIDTH: Final = 4
STAT_HEIGHT: Final = 4


@dataclass(frozen=True)
class Panel:
    """One panel. `queries` maps legends to PromQL; `steps` are the lower bounds of colours."""

    title: str
    description: str
    unit: str
    queries: Mapping[str, str]
    is_stat: bool = False
    stacked: bool = False
    width: int = 8
    height: int = 8
    steps: Sequence[tuple[float | None, str]] = GREEN


@dataclass(frozen=True)
class Row:
    """Panels below one title."""

    title: str
    panels: Sequence[Panel]


def _select(query: str) -> str:
    """Returns a query with the matchers of the variables: `name%` and `name{a="b",%}`."""
    return query.replace(",%}", f",{MATCHERS}}}").replace("%", f"{{{MATCHERS}}}")


def _series(
    title: str, unit: str, description: str, queries: Mapping[str, str], *, stacked: bool = False
) -> Panel:
    chosen = {legend: _select(query) for legend, query in queries.items()}
    return Panel(title, description, unit, chosen, stacked=stacked)


def _stat(
    title: str,
    unit: str,
    description: str,
    query: str,
    steps: Sequence[tuple[float | None, str]] = GREEN,
) -> Panel:
    return Panel(
        title, description, unit, {title: _select(query)}, is_stat=True, width=STAT_WIDTH,
        height=STAT_HEIGHT, steps=steps,
    )  # fmt: skip


def _rate(name: str, by: str = "", labels: str = "") -> str:
    """Returns the rate of a counter per second, summed over all other labels."""
    grouped = f" by ({by})" if by else ""
    matchers = f"{{{labels},%}}" if labels else "%"
    return f"sum{grouped} (rate({name}{matchers}[$__rate_interval]))"


def _quantile(share: float, name: str) -> str:
    return f"histogram_quantile({share:g}, {_rate(f'{name}_bucket', 'le')})"


def _quantiles(name: str) -> dict[str, str]:
    return {f"p{share * 100:g}": _quantile(share, name) for share in (0.5, 0.95, 0.99)}


_HITS: Final = _rate("cachefs_worker_hits_total")
_OPENS: Final = f"({_HITS} + {_rate('cachefs_worker_misses_total')})"
_NODE_HITS: Final = _rate("cachefs_worker_hits_total", "instance")
_NODE_OPENS: Final = f"({_NODE_HITS} + {_rate('cachefs_worker_misses_total', 'instance')})"

OVERVIEW: Final = Row(
    "Overview",
    (
        _stat(
            "Workers", "short", "Workers that serve, as the master counts them.",
            'sum(cachefs_master_workers{state="serving",%})', RED_BELOW_1,
        ),
        _stat(
            "Lost workers", "short",
            "Workers without heartbeats. `cachefs workers` names them.",
            'sum(cachefs_master_workers{state="lost",%})', RED_FROM_1,
        ),
        _stat(
            "Hit ratio", "percentunit",
            "Share of the opens whose file was complete on the reader's node.",
            f"{_HITS} / ({_OPENS} > 0)",
        ),
        _stat(
            "Cached", "bytes", "Allocated bytes of all tiers.",
            "sum(cachefs_worker_tier_used_bytes%)",
        ),
        _stat(
            "Origins down", "short",
            "Sources whose origin does not answer: known names and cached bytes are served.",
            "sum(cachefs_master_origin_down%)", RED_FROM_1,
        ),
        _stat(
            "Failed tiers", "short",
            "Tiers that are degraded or offline: reads bypass them.",
            'sum(cachefs_worker_tier_state{state=~"degraded|offline",%})', RED_FROM_1,
        ),
    ),
)  # fmt: skip

READS: Final = Row(
    "Reads",
    (
        _series(
            "Hit ratio", "percentunit",
            "Share of the opens whose file was complete on the reader's node, by node.",
            {"{{instance}}": f"{_NODE_HITS} / ({_NODE_OPENS} > 0)"},
        ),
        _series(
            "Bytes by source", "Bps",
            "Bytes by source: complete files that the kernel reads itself (passthrough, counted at "
            "each open), other reads of cached bytes (local), other workers (peer), origins.",
            {"{{source}}": _rate("cachefs_worker_bytes_total", "source")}, stacked=True,
        ),
        _series(
            "Opens", "ops", "Opens per second of files that were complete (hits) or not (misses).",
            {"hits": _HITS, "misses": _rate("cachefs_worker_misses_total")}, stacked=True,
        ),
        _series(
            "Fills in flight", "short",
            "Requests for bytes to origins and other workers, in flight or queued, by node.",
            {"{{instance}}": "sum by (instance) (cachefs_worker_fills_in_flight%)"},
        ),
        _series(
            "Refused fills", "ops",
            "Fills that the cache did not keep, since it is full of files that stay.",
            {"{{instance}}": _rate("cachefs_worker_refused_total", "instance")},
        ),
        _series(
            "Prefetched files", "ops", "Small files that were prefetched, per second.",
            {"{{instance}}": _rate("cachefs_worker_ahead_files_total", "instance")},
        ),
    ),
)  # fmt: skip

CACHE: Final = Row(
    "Cache",
    (
        _series(
            "Tier use", "percentunit", "Allocated bytes of each tier, as a share of its limit.",
            {
                "{{instance}} {{path}}": "cachefs_worker_tier_used_bytes%"
                " / cachefs_worker_tier_limit_bytes%"
            },
        ),
        _series(
            "Tier bytes", "bytes", "Allocated bytes of each tier.",
            {"{{instance}} {{path}}": "cachefs_worker_tier_used_bytes%"}, stacked=True,
        ),
        _series(
            "Tier state", "short",
            "1 for each tier that is degraded or offline; its node reads without it.",
            {
                "{{instance}} {{path}} {{state}}": "cachefs_worker_tier_state"
                '{state=~"degraded|offline",%}'
            },
        ),
        _series(
            "Evicted bytes", "Bps", "Bytes of cached files that were evicted, by node.",
            {"{{instance}}": _rate("cachefs_worker_evicted_bytes_total", "instance")},
        ),
        _series(
            "Evicted files", "ops", "Files whose cached bytes were removed, by reason.",
            {"{{reason}}": _rate("cachefs_worker_evicted_files_total", "reason")}, stacked=True,
        ),
        _series(
            "Between tiers, and verified", "Bps",
            "Bytes that moved between the tiers of a node, and bytes that the scrubber verified.",
            {
                "moved": _rate("cachefs_worker_moved_bytes_total"),
                "verified": _rate("cachefs_worker_scrubbed_bytes_total"),
            },
        ),
        _series(
            "Memory", "bytes", "Memory in use and its limit, by node.",
            {"{{instance}} {{kind}}": "cachefs_worker_memory_bytes%"},
        ),
        _series(
            "Damage and errors", "ops",
            "Pages with a wrong checksum (dropped and fetched again), and failures by their code.",
            {
                "bad pages": _rate("cachefs_worker_bad_pages_total"),
                "{{code}}": _rate("cachefs_worker_errors_total", "code"),
            },
        ),
        _series(
            "Uncommitted records", "short",
            "Records of cached bytes that a SIGKILL now would lose, by tier.",
            {"{{instance}} {{path}}": "cachefs_worker_tier_commits_waiting%"},
        ),
    ),
)  # fmt: skip

ORIGINS: Final = Row(
    "Origins",
    (
        _series(
            "Requests for bytes", "reqps", "Requests for bytes, by node.",
            {"{{instance}}": _rate("cachefs_worker_origin_requests_total", "instance")},
        ),
        _series(
            "Errors", "reqps", "Failed requests of the master to the origin of a source.",
            {"{{path}}": _rate("cachefs_master_origin_errors_total", "path")},
        ),
        _series(
            "Fill latency", "s",
            "Time until the bytes of one request arrived, with waits for room in the cache.",
            _quantiles("cachefs_worker_fill_seconds"),
        ),
        _series(
            "Origin down", "short", "1 while the origin of the source at a path does not answer.",
            {"{{path}}": "max by (path) (cachefs_master_origin_down%)"},
        ),
        _series(
            "Connections", "ops", "Connections made to origins, and TLS handshakes on them.",
            {
                "connections": _rate("cachefs_worker_origin_connections_total"),
                "handshakes": _rate("cachefs_worker_origin_handshakes_total"),
            },
        ),
        _series(
            "Metadata requests", "reqps",
            "Directory listings and single names that the master requests from origins.",
            {
                "listings": _rate("cachefs_master_listings_total"),
                "single names": _rate("cachefs_master_stats_total"),
            },
        ),
    ),
)  # fmt: skip

MEMBERS: Final = Row(
    "Membership and workers' traffic",
    (
        _series(
            "Workers by state", "short", "Workers as the master counts them.",
            {"{{state}}": "sum by (state) (cachefs_master_workers%)"}, stacked=True,
        ),
        _series(
            "Epoch", "short",
            "The epoch of the placement: of the master, and the lowest that a worker knows. It "
            "rises with every change of ownership.",
            {
                "master": "max(cachefs_master_epoch%)",
                "lowest of the workers": "min(cachefs_worker_epoch%)",
            },
        ),
        _series(
            "Blocks to move", "short",
            "Blocks that go to new owners; 0 when the placement is settled.",
            {
                "to give": "sum(cachefs_worker_blocks_to_give%)",
                "to take": "sum(cachefs_worker_blocks_to_take%)",
            },
        ),
        _series(
            "Traffic between workers", "Bps",
            "Bytes sent to other workers, and bytes received because blocks have new owners.",
            {
                "served": _rate("cachefs_worker_served_bytes_total"),
                "taken over": _rate("cachefs_worker_taken_bytes_total"),
            },
        ),
        _series(
            "Requests of other workers", "reqps", "Answers to other workers, by outcome.",
            {"{{outcome}}": _rate("cachefs_worker_served_total", "outcome")}, stacked=True,
        ),
        _series(
            "Trouble between workers", "reqps",
            "Failed requests to other workers, hedges (the first worker was slow), reads that fell "
            "back to the origin, and pages with a wrong checksum.",
            {
                "failures": _rate("cachefs_worker_peer_failures_total"),
                "hedges": _rate("cachefs_worker_peer_hedges_total"),
                "fallbacks": _rate("cachefs_worker_peer_fallbacks_total"),
                "wrong pages": _rate("cachefs_worker_peer_wrong_pages_total"),
            },
        ),
    ),
)  # fmt: skip

MASTER: Final = Row(
    "Master",
    (
        _series(
            "Problems", "short", "Problems of the cluster by code, as of `cachefs health`.",
            {"{{code}}": "sum by (code) (cachefs_master_problems%)"}, stacked=True,
        ),
        _series(
            "Quotas", "percentunit", "Used share of the quota of a path.",
            {
                "{{path}}": "max by (path) (cachefs_master_quota_used_bytes%) "
                "/ max by (path) (cachefs_master_quota_bytes%)",
            },
        ),
        _series(
            "Calls", "reqps", "Calls that the master answered, by kind.",
            {"{{call}}": _rate("cachefs_master_calls_total", "call")}, stacked=True,
        ),
        _series(
            "Failed calls", "reqps", "Calls that failed, by the code of the error.",
            {"{{code}}": _rate("cachefs_master_failures_total", "code")},
        ),
        _series(
            "Latency of calls", "s", "Time that calls took, without long polls.",
            _quantiles("cachefs_master_call_seconds"),
        ),
        _series(
            "Calls in flight", "short",
            "Calls that wait for an answer (from 2,048 on more are refused), and open long polls.",
            {
                "calls": "sum(cachefs_master_calls_in_flight%)",
                "long polls": "sum(cachefs_master_polls%)",
            },
        ),
        _series(
            "Names", "short", "Names in the store of the master.",
            {"names": "sum(cachefs_master_names%)"},
        ),
        _series(
            "Walks and invalidations", "short",
            "Directory walks in progress, and invalidations per second.",
            {
                "walks": "sum(cachefs_master_walks%)",
                "invalidations/s": _rate("cachefs_master_events_total"),
            },
        ),
    ),
)  # fmt: skip

LOADS: Final = Row(
    "Load jobs",
    (
        _series(
            "Jobs by state", "short", "Load jobs that the master keeps.",
            {"{{state}}": "sum by (state) (cachefs_master_jobs%)"}, stacked=True,
        ),
        _series(
            "Tasks and files", "short",
            "Tasks of load jobs that workers have, and files that workers load now.",
            {
                "tasks": "sum(cachefs_master_tasks%)",
                "files": "sum(cachefs_worker_loading_files%)",
            },
        ),
        _series(
            "Bytes from origins", "Bps", "Bytes from origins by node, of loads and of reads.",
            {"{{instance}}": _rate("cachefs_worker_bytes_total", "instance", 'source="origin"')},
            stacked=True,
        ),
    ),
)  # fmt: skip

MOUNTS: Final = Row(
    "Mounts, take-overs and pods",
    (
        _series(
            "Mounts", "short",
            "Mounts by node: of workers, of holders, and mounts that pods share.",
            {
                "{{instance}} worker": "sum by (instance) (cachefs_worker_mounts%)",
                "{{instance}} holder": "sum by (instance) (cachefs_agent_mounts%)",
                "{{instance}} shared": "sum by (instance) (cachefs_csi_shared_mounts%)",
            },
        ),
        _series(
            "Requests of the kernel", "ops", "What the clients of mounts counted, by kind.",
            {
                "{{event}}": _rate(
                    "cachefs_client_events_total", "event", 'event!="open_files"'
                )
            },
        ),
        _series(
            "Client processes", "short",
            "Client processes of an hour that followed another one of their mount.",
            {
                "{{mountpoint}}": "sum by (mountpoint) "
                "(increase(cachefs_worker_takeovers_total%[1h]))",
            },
        ),
        _series(
            "Take-overs", "short",
            "Supervisors that agents started in the last 15 minutes: at their start, for new "
            "mounts, and for mounts that lost their processes.",
            {"{{cause}}": "sum by (cause) (increase(cachefs_agent_takeovers_total%[15m]))"},
        ),
        _series(
            "Longest pause", "s",
            "Longest time in which no process served a mount, since the start of the agent.",
            {"{{instance}}": "max by (instance) (cachefs_agent_longest_pause_seconds%)"},
        ),
        _series(
            "Deposits and aborted mounts", "short",
            "Mounts that were deposited with the holder, and mounts that nothing could serve, in "
            "the last 15 minutes.",
            {
                "deposits": "sum(increase(cachefs_agent_deposits_total%[15m]))",
                "aborted": "sum(increase(cachefs_agent_aborted_mounts_total%[15m]))",
            },
        ),
        _series(
            "Volumes of pods", "short", "Volumes that are bound into pods, by node.",
            {"{{instance}}": "sum by (instance) (cachefs_csi_published_volumes%)"},
        ),
        _series(
            "Publishes", "ops", "Publishes of volumes, by result.",
            {"{{result}}": _rate("cachefs_csi_publishes_total", "result")}, stacked=True,
        ),
        _series(
            "Latency of publishes", "s", "Time that successful publishes took.",
            _quantiles("cachefs_csi_publish_seconds"),
        ),
        _series(
            "Lost volumes and orphans", "short",
            "Pods that lost their volume and must be restarted, and remains that were removed, in "
            "the last 15 minutes.",
            {
                "{{pod}}": "sum by (pod) (increase(cachefs_csi_lost_volumes_total%[15m]))",
                "orphans: {{kind}}": "sum by (kind) "
                "(increase(cachefs_csi_orphans_removed_total%[15m]))",
            },
        ),
    ),
)  # fmt: skip

ROWS: Final = (OVERVIEW, READS, CACHE, ORIGINS, MEMBERS, MASTER, LOADS, MOUNTS)
