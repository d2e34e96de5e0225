"""For each alert: series on which it fires, with its labels and the value that it shows, and series
on which it stays quiet. Samples are a minute apart, in promtool's notation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

TARGET: Final = 'job="cachefs",instance="n:1"'
LABELS: Final = {"job": "cachefs", "instance": "n:1"}


@dataclass(frozen=True)
class Case:
    """`series` maps what follows `cachefs_` to samples. `labels`: of the alert that fires, beside
    those of `LABELS` that it keeps (`keeps`); None: it stays quiet. `value`: as it is shown."""

    alert: str
    at: str
    series: Mapping[str, str]
    labels: Mapping[str, str] | None = None
    keeps: tuple[str, ...] = ("job", "instance")
    value: str = ""

    @property
    def input_series(self) -> list[dict[str, str]]:
        return [{"series": _full(name), "values": values} for name, values in self.series.items()]


def _full(name: str) -> str:
    """Returns a series with the labels of the target: `name` or `name{more}`."""
    metric, _, more = name.rstrip("}").partition("{")
    prefix = "" if metric == "up" else "cachefs_"
    labels = more if "job=" in more else ",".join(filter(None, (more, TARGET)))
    return f"{prefix}{metric}{{{labels}}}"


@dataclass(frozen=True)
class Pair:
    """A case in which an alert fires, and cases in which it does not."""

    fires: Case
    quiet: tuple[Case, ...] = field(default=())


def pair(
    alert: str,
    at: str,
    fires: Mapping[str, str],
    *quiet: Mapping[str, str],
    labels: Mapping[str, str] | None = None,
    keeps: tuple[str, ...] = ("job", "instance"),
    value: str = "",
) -> Pair:
    """Returns the cases of one alert, all evaluated at one time."""
    rest = tuple(Case(alert, at, series) for series in quiet)
    return Pair(Case(alert, at, fires, labels or {}, keeps, value), rest)


def _buckets(name: str, bounds: Mapping[str, str]) -> dict[str, str]:
    return {f'{name}_bucket{{le="{bound}"}}': values for bound, values in bounds.items()}


SLOW: Final = {"1.0": "0+10x40", "2.5": "0+10x40", "10.0": "0+100x40", "+Inf": "0+100x40"}
FAST: Final = {"1.0": "0+100x40", "2.5": "0+100x40", "10.0": "0+100x40", "+Inf": "0+100x40"}
TIER: Final = 'path="/t"'

PAIRS: Final = (
    pair(
        "CacheFSTargetDown", "5m", {"up": "1 1 0x10"},
        {"up": "1x10"}, {"up": "1 1 1 1 1 0 1x5"}, {'up{job="node",instance="n:1"}': "0x10"},
    ),
    pair("CacheFSMasterAbsent", "3m", {"worker_mounts": "1x10"}, {"master_members": "3x10"},
         keeps=()),
    pair(
        "CacheFSMemoryAboveLimit", "15m",
        {'worker_memory_bytes{kind="used"}': "2147483648x20",
         'worker_memory_bytes{kind="limit"}': "1073741824x20"},
        {'worker_memory_bytes{kind="used"}': "1000x20",
         'worker_memory_bytes{kind="limit"}': "1073741824x20"},
        {'worker_memory_bytes{kind="used"}': "0x10 2147483648x10",
         'worker_memory_bytes{kind="limit"}': "1073741824x20"},
        value="2Gi",
    ),
    pair(
        "CacheFSWorkerLost", "2m", {'master_workers{state="lost"}': "0 2x5"},
        {'master_workers{state="lost"}': "0x5", 'master_workers{state="serving"}': "3x5"},
        labels={"state": "lost"}, value="2",
    ),
    pair("CacheFSNoOwners", "7m", {"master_members": "0x10"}, {"master_members": "1x10"},
         {"master_members": "0 0 0 1x10"}),
    pair(
        "CacheFSNotSettled", "20m", {"master_settled": "0x30", "master_members": "3x30"},
        {"master_settled": "1x30", "master_members": "3x30"},
        {"master_settled": "0x30", "master_members": "0x30"},
        {"master_settled": "0x10 1 0x20", "master_members": "3x30"},
    ),
    pair(
        "CacheFSOriginDown", "3m", {'master_origin_down{path="/a"}': "1x5"},
        {'master_origin_down{path="/a"}': "0x5"}, {'master_origin_down{path="/a"}': "0 0 0 1x5"},
        labels={"path": "/a"},
    ),
    pair(
        "CacheFSOriginErrors", "20m", {'master_origin_errors_total{path="/a"}': "0+60x30"},
        {'master_origin_errors_total{path="/a"}': "0+1x30"},
        {'master_origin_errors_total{path="/a"}': "0x10 0+60x3 180x20"},
        labels={"path": "/a"}, value="1",
    ),
    pair("CacheFSSlowFills", "30m", _buckets("worker_fill_seconds", SLOW),
         _buckets("worker_fill_seconds", FAST),
         _buckets("worker_fill_seconds", dict.fromkeys(SLOW, "7x40"))),
    pair(
        "CacheFSCredentialsExpired", "3m",
        {'master_problems{code="CREDENTIALS_EXPIRED"}': "0 2x5"},
        {'master_problems{code="CREDENTIALS_EXPIRED"}': "0x5",
         'master_problems{code="ORIGIN_DOWN"}': "2x5"},
        labels={"code": "CREDENTIALS_EXPIRED"}, value="2",
    ),
    pair(
        "CacheFSQuotaFull", "20m",
        {'master_quota_bytes{path="/a"}': "6400x30",
         'master_quota_used_bytes{path="/a"}': "6300x30"},
        {'master_quota_bytes{path="/a"}': "6400x30",
         'master_quota_used_bytes{path="/a"}': "6299x30"},
        labels={"path": "/a"}, value="6.152ki",
    ),
    pair(
        "CacheFSClientsRepeat", "30m", {'worker_takeovers_total{mountpoint="/m"}': "0 0+1x30"},
        {'worker_takeovers_total{mountpoint="/m"}': "7x30"},
        {'worker_takeovers_total{mountpoint="/m"}': "0 1 2x30"},
        labels={"mountpoint": "/m"}, value="29",
    ),
    pair("CacheFSStoreDisk", "3m", {'master_problems{code="STORE_DISK"}': "1x5"},
         {'master_problems{code="STORE_DISK"}': "0x5"}, labels={"code": "STORE_DISK"}),
    pair(
        "CacheFSCertificateExpires", "5m",
        {'master_certificate_expiry_timestamp_seconds{server="worker a"}': "86700x9"},
        {'master_certificate_expiry_timestamp_seconds{server="worker a"}': "1300000x9"},
        {'master_problems{code="CERTIFICATE_EXPIRES"}': "0x9"},
        labels={"server": "worker a"}, value="1d 0h 0m 0s",
    ),
    pair(
        "CacheFSTierFailed", "3m", {f'worker_tier_state{{{TIER},state="offline"}}': "1x5"},
        {f'worker_tier_state{{{TIER},state="offline"}}': "0x5",
         f'worker_tier_state{{{TIER},state="normal"}}': "1x5"},
        labels={"path": "/t", "state": "offline"},
    ),
    pair(
        "CacheFSTierAboveLimit", "20m",
        {f"worker_tier_used_bytes{{{TIER}}}": "1100x30",
         f"worker_tier_limit_bytes{{{TIER}}}": "1000x30"},
        {f"worker_tier_used_bytes{{{TIER}}}": "1001x30",
         f"worker_tier_limit_bytes{{{TIER}}}": "1000x30"},
        labels={"path": "/t"},
    ),
    pair("CacheFSDamagedPages", "5m", {"worker_bad_pages_total": "0 0 0 1x5"},
         {"worker_bad_pages_total": "4x9"}),
    pair("CacheFSWrongPages", "5m", {"worker_peer_wrong_pages_total": "0 0 0 1x5"},
         {"worker_peer_wrong_pages_total": "4x9"}),
    pair(
        "CacheFSFewHits", "100m",
        {"worker_hits_total": "0+300x120", "worker_misses_total": "0+1200x120"},
        {"worker_hits_total": "0+1200x120", "worker_misses_total": "0+1200x120"},
        {"worker_hits_total": "0+1x120", "worker_misses_total": "0+60x120"},
        keeps=("job",), value="20%",
    ),
    pair("CacheFSFallbacks", "20m", {"worker_peer_fallbacks_total": "0+120x30"},
         {"worker_peer_fallbacks_total": "0+6x30"}, value="2"),
    pair(
        "CacheFSJobFailed", "5m", {'master_jobs{state="failed"}': "0 0 0 1x5"},
        {'master_jobs{state="failed"}': "3x9"}, {'master_jobs{state="succeeded"}': "0 0 0 1x5"},
        labels={"state": "failed"},
    ),
    pair(
        "CacheFSJobWaits", "15m", {'master_jobs{state="loading"}': "2x20", "master_tasks": "0x20"},
        {'master_jobs{state="loading"}': "2x20", "master_tasks": "4x20"},
        {'master_jobs{state="loading"}': "0x20", "master_tasks": "0x20"},
        labels={"state": "loading"}, value="2",
    ),
    pair("CacheFSMasterBusy", "7m", {"master_calls_in_flight": "1500x9"},
         {"master_calls_in_flight": "900x9"}, {"master_calls_in_flight": "0x5 1500x5"},
         value="1500"),
    pair("CacheFSMasterSlow", "20m", _buckets("master_call_seconds", SLOW),
         _buckets("master_call_seconds", FAST)),
    pair(
        "CacheFSVolumeLost", "5m", {'csi_lost_volumes_total{pod="a/b"}': "_ _ _ 1x5"},
        {"csi_published_volumes": "1x9"}, labels={"pod": "a/b"},
    ),
    pair(
        "CacheFSVolumeLost", "30m", {'csi_lost_volumes_total{pod="a/b"}': "1x25 2x10"},
        {'csi_lost_volumes_total{pod="a/b"}': "1x40"}, labels={"pod": "a/b"},
    ),
    pair(
        "CacheFSPublishesFail", "30m", {'csi_publishes_total{result="unreachable"}': "0+1x40"},
        {'csi_publishes_total{result="ok"}': "0+1x40",
         'csi_publishes_total{result="unreachable"}': "5x40"},
        labels={"result": "unreachable"},
    ),
    pair("CacheFSMountAborted", "5m", {"agent_aborted_mounts_total": "0 0 0 1x5"},
         {"agent_aborted_mounts_total": "2x9"}),
    pair("CacheFSLongPause", "5m", {"agent_longest_pause_seconds": "0 0 0 42x5"},
         {"agent_longest_pause_seconds": "0 0 0 1.5x5"}, {"agent_longest_pause_seconds": "42x9"},
         value="42s"),
    pair(
        "CacheFSTakeoversRepeat", "29m", {'agent_takeovers_total{cause="lost"}': "0+1x40"},
        {'agent_takeovers_total{cause="lost"}': "3x40",
         'agent_takeovers_total{cause="start"}': "0+1x40"},
        value="29",
    ),
)  # fmt: skip
