"""The display of `cachefs top`: from two looks at counters to rates, lines and documents. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from cachefs.cli import output
from cachefs.core.health import HealthProblem, problem_lines
from cachefs.core.jobs import JobStatus
from cachefs.core.units import format_duration, format_size

MOST_PROBLEMS: Final = 6
PATHS_SHOWN: Final = 12
SLOW_SHOWN: Final = 8
SLOW_S: Final = 0.1  # faster fills are not shown as lines
OPENS_S: Final = 5.0  # the period of `worker.stats.by_path`
_COUNTED: Final = ("hits", "misses", "origin_bytes", "peer_bytes", "evicted_bytes")


class NodeSample(msgspec.Struct, frozen=True):
    """A server or a worker at one moment. The counters are since its start."""

    name: str
    state: str = "ok"
    used_bytes: int = 0
    limit_bytes: int = 0
    fills: int = 0
    hits: int = 0
    misses: int = 0
    origin_bytes: int = 0
    peer_bytes: int = 0
    evicted_bytes: int = 0


class Look(msgspec.Struct, frozen=True):
    """All servers at one moment (`at_s`, monotonic). `paths`: counters by path. `slow`: by path,
    see `worker.stats.slowest`."""

    at_s: float
    title: str
    nodes: list[NodeSample]
    paths: dict[str, dict[str, int]]
    slow: dict[str, dict[str, float]]
    jobs: list[JobStatus]
    problems: list[HealthProblem] = []


def node_sample(name: str, state: str, facts: Mapping[str, Any], **sizes: int) -> NodeSample:
    """Returns a look from a worker's facts, or from a server's status of its cache."""
    counted = {field: int(facts.get(field, 0)) for field in _COUNTED}
    return NodeSample(name, state, fills=int(facts.get("fills_in_flight", 0)), **sizes, **counted)


def summed(trees: Iterable[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Returns the counters by path, summed over several workers."""
    total: dict[str, dict[str, Any]] = {}
    for tree in trees:
        for path, counts in tree.items():
            known = total.setdefault(path, {})
            for name, count in counts.items():
                known[name] = known.get(name, 0) + count
    return total


class Rates(msgspec.Struct, frozen=True):
    """Rates per second. `hit_share`: of opens; None without opens."""

    opens: float = 0.0
    hit_share: float | None = None
    origin_bytes_s: float = 0.0
    peer_bytes_s: float = 0.0
    evicted_bytes_s: float = 0.0


class NodeRow(msgspec.Struct, frozen=True):
    look: NodeSample
    rates: Rates


class PathRow(msgspec.Struct, frozen=True):
    """The rates of one path. The opens are those of the workers' last period (`OPENS_S`), counted
    in a sample. `total_share`: of all opens since the start."""

    path: str
    rates: Rates
    total_share: float | None


class Frame(msgspec.Struct, frozen=True):
    """The difference of two looks, as it is shown."""

    title: str
    over_s: float
    all: NodeRow
    nodes: list[NodeRow]
    paths: list[PathRow]
    slow: list[tuple[str, dict[str, float]]]
    jobs: list[JobStatus]
    problems: list[HealthProblem] = []


def frame(old: Look, new: Look) -> Frame:
    """Returns the changes between two looks."""
    over_s = max(1e-3, new.at_s - old.at_s)
    before = {node.name: node for node in old.nodes}
    nodes = [
        NodeRow(node, _rates(_fields(before.get(node.name)), _fields(node), over_s))
        for node in new.nodes
    ]
    paths = [
        PathRow(path, _path_rates(old.paths.get(path, {}), counts, over_s), _share(counts))
        for path, counts in new.paths.items()
    ]
    paths.sort(key=lambda row: (-row.rates.opens, -row.rates.origin_bytes_s, row.path))
    slow = sorted(new.slow.items(), key=lambda one: -one[1]["took_s"])[:SLOW_SHOWN]
    return Frame(new.title, over_s, _whole(nodes), nodes, paths, slow, new.jobs, new.problems)


def _fields(node: NodeSample | None) -> dict[str, int]:
    return {name: getattr(node, name) for name in _COUNTED} if node is not None else {}


def _rates(old: Mapping[str, int], new: Mapping[str, int], over_s: float) -> Rates:
    """Returns the rates. A counter that fell belongs to a restarted process and counts from 0."""

    def grown(name: str) -> int:
        now, before = new.get(name, 0), old.get(name, 0)
        return now - before if now >= before else now

    if not old:
        return Rates()  # nothing to compare with
    hits, misses = grown("hits"), grown("misses")
    return Rates(
        (hits + misses) / over_s,
        hits / (hits + misses) if hits + misses else None,
        grown("origin_bytes") / over_s,
        grown("peer_bytes") / over_s,
        grown("evicted_bytes") / over_s,
    )


def _path_rates(old: Mapping[str, int], new: Mapping[str, int], over_s: float) -> Rates:
    hits, misses = new.get("recent_hits", 0), new.get("recent_misses", 0)
    share = _share({"hits": hits, "misses": misses})
    rates = _rates(old, new, over_s)
    return msgspec.structs.replace(rates, opens=(hits + misses) / OPENS_S, hit_share=share)


def _share(counts: Mapping[str, int]) -> float | None:
    opens = counts.get("hits", 0) + counts.get("misses", 0)
    return counts.get("hits", 0) / opens if opens else None


def _whole(rows: Sequence[NodeRow]) -> NodeRow:
    """Returns the sum of all rows."""
    opens = sum(row.rates.opens for row in rows)
    hits = sum(row.rates.opens * (row.rates.hit_share or 0.0) for row in rows)
    sums = {
        name: sum(getattr(row.look, name) for row in rows)
        for name in NodeSample.__struct_fields__
        if name not in ("name", "state")
    }
    rates = {
        name: sum(getattr(row.rates, name) for row in rows)
        for name in ("origin_bytes_s", "peer_bytes_s", "evicted_bytes_s")
    }
    return NodeRow(
        NodeSample("all", **sums), Rates(opens, hits / opens if opens else None, **rates)
    )


def lines(shown: Frame, now: float) -> list[str]:
    """Returns a frame as lines; a share with `~` is of a sample. `now`: wall time, s."""
    look, rates = shown.all.look, shown.all.rates
    found = [
        shown.title,
        *problem_lines(shown.problems, now)[:MOST_PROBLEMS],
        f"cached {format_size(look.used_bytes)} of {format_size(look.limit_bytes)}"
        f" · hits {_percent(rates.hit_share)} of {rates.opens:,.0f} opens/s"
        f" · origin {_rate(rates.origin_bytes_s)} · peers {_rate(rates.peer_bytes_s)}"
        f" · fills {look.fills} · evicted {_rate(rates.evicted_bytes_s)}",
    ]
    if len(shown.nodes) > 1:
        found += ["", *_node_lines(shown.nodes)]
    if shown.paths:
        found += ["", *_path_lines(shown.paths)]
    if shown.jobs:
        found += ["", *_job_lines(shown.jobs)]
    slow = [one for one in shown.slow if one[1]["took_s"] >= SLOW_S]
    if slow:
        found += ["", *_slow_lines(slow)]
    return found


def _node_lines(rows: Sequence[NodeRow]) -> list[str]:
    head = ["WORKER", "STATE", "USED", "HIT", "OPENS/s"]
    head += ["ORIGIN/s", "PEERS/s", "FILLS", "EVICTED/s"]
    body = [
        [
            row.look.name,
            row.look.state,
            output.percent_of(row.look.used_bytes, max(1, row.look.limit_bytes)),
            _percent(row.rates.hit_share),
            f"{row.rates.opens:,.0f}",
            format_size(row.rates.origin_bytes_s),
            format_size(row.rates.peer_bytes_s),
            str(row.look.fills),
            format_size(row.rates.evicted_bytes_s),
        ]
        for row in rows
    ]
    return output.columns([head, *body], right=range(2, 9))


def _path_lines(rows: Sequence[PathRow]) -> list[str]:
    head = ["HIT NOW", "HIT", "OPENS/s", "ORIGIN/s", "PEERS/s", "PATH"]
    body = [
        [
            _percent(row.rates.hit_share, "~"),
            _percent(row.total_share, "~"),
            f"{row.rates.opens:,.0f}",
            format_size(row.rates.origin_bytes_s),
            format_size(row.rates.peer_bytes_s),
            row.path,
        ]
        for row in rows[:PATHS_SHOWN]
    ]
    return output.columns([head, *body], right=range(5))


def _job_lines(jobs: Sequence[JobStatus]) -> list[str]:
    head = ["JOB", "STATE", "FILES", "BYTES", "RATE", "LEFT", "FAILED", "PATHS"]
    body = [
        [
            str(job.job),
            job.state.value,
            f"{job.files_done:,} of {job.files_found:,}{'' if job.listing_done else '+'}",
            f"{format_size(job.bytes_done)} of {format_size(job.bytes_found)}",
            _rate(job.rate_bytes_s),
            "-" if job.eta_s is None else format_duration(job.eta_s),
            str(job.files_failed),
            _paths_of(job),
        ]
        for job in jobs
    ]
    return output.columns([head, *body], right=(0, 4, 5, 6))


def _paths_of(job: JobStatus) -> str:
    first = "/" + output.text_of(job.paths[0].strip(b"/")) if job.paths else "-"
    return first if job.path_count <= 1 else f"{first} and {job.path_count - 1} more"


def _slow_lines(slow: Sequence[tuple[str, Mapping[str, float]]]) -> list[str]:
    head = ["SLOW", "BYTES", "AGO", "PATH"]
    body = [
        [
            format_duration(row["took_s"]),
            format_size(row["bytes"]),
            format_duration(row["ago_s"]),
            output.text_of(path.encode("utf-8", "surrogateescape")),
        ]
        for path, row in slow
    ]
    return output.columns([head, *body], right=(0, 1, 2))


def _percent(share: float | None, mark: str = "") -> str:
    return "-" if share is None else f"{mark}{output.percent_of(share, 1.0)}"


def _rate(bytes_s: float) -> str:
    return f"{format_size(bytes_s)}/s"


def document(shown: Frame) -> dict[str, Any]:
    """Returns a frame as a JSON document; shares are from 0 to 1, null without opens."""
    return {
        "title": shown.title,
        "problems": [msgspec.to_builtins(one) for one in shown.problems],
        "over_s": round(shown.over_s, 3),
        "all": _node_document(shown.all),
        "nodes": [_node_document(row) for row in shown.nodes],
        "paths": [
            {"path": row.path, **_rates_document(row.rates), "total_hit_share": row.total_share}
            for row in shown.paths
        ],
        "jobs": [_job_document(job) for job in shown.jobs],
        "slow_fills": [{"path": path, **row} for path, row in shown.slow],
    }


def _node_document(row: NodeRow) -> dict[str, Any]:
    facts = msgspec.to_builtins(row.look)
    kept = ("name", "state", "used_bytes", "limit_bytes", "fills")
    return {name: facts[name] for name in kept} | _rates_document(row.rates)


def _rates_document(rates: Rates) -> dict[str, Any]:
    return {
        "opens_s": round(rates.opens, 1),
        "hit_share": rates.hit_share,
        "origin_bytes_s": round(rates.origin_bytes_s),
        "peer_bytes_s": round(rates.peer_bytes_s),
        "evicted_bytes_s": round(rates.evicted_bytes_s),
    }


def _job_document(job: JobStatus) -> dict[str, Any]:
    names = ("job", "files_found", "files_done", "files_failed", "bytes_found", "bytes_done")
    facts: dict[str, Any] = {name: getattr(job, name) for name in names}
    facts |= {"state": job.state.value, "rate_bytes_s": round(job.rate_bytes_s)}
    return facts | {"eta_s": job.eta_s, "paths": [output.text_of(path) for path in job.paths]}
