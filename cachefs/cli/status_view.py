"""A status document as lines: problems first, then a few lines for each part. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from cachefs.cli import output
from cachefs.core.printable import printable
from cachefs.core.units import format_duration, format_size

MOST_LINES: Final = 25  # of a document, as one screen shows it
MOST_ROWS: Final = 4  # of a list in it: cache directories, sources, workers
MOST_PROBLEMS: Final = 6

Row = tuple[str, str]


def mount_lines(tree: dict[str, Any], problems: Sequence[str]) -> list[str]:
    """Returns the lines of a mount; at most `MOST_LINES`. `problems`: one line each."""
    head = f"{tree['mountpoint']}  {tree['source']}  {_verdict(tree['state'], problems)}"
    if "cache" not in tree:
        return [head, *_short(problems, MOST_PROBLEMS, "  ")]
    rows = [
        ("transport", _transport(tree)),
        *_cache(tree["cache"]),
        *_names(tree.get("sources", [])),
        *_views(tree.get("views", {})),
        ("processes", _processes(tree)),
        *((name, str(tree[name])) for name in ("server_log", "client_log") if name in tree),
        ("version", f"{tree.get('version', '?')}, up {format_duration(tree.get('uptime_s', 0))}"),
    ]
    return [head, *_short(problems, MOST_PROBLEMS, "  "), *_table(rows)]


def master_lines(tree: dict[str, Any], problems: Sequence[str]) -> list[str]:
    """Returns the lines of a cluster's master; at most `MOST_LINES`."""
    head = f"{tree['master']}  {_verdict(tree['state'], problems)}"
    if "epoch" not in tree:
        return [head, *_short(problems, MOST_PROBLEMS, "  ")]
    moving = "settled" if tree.get("settled", True) else "blocks are moving"
    rows = [
        ("epoch", f"{tree['epoch']}, {moving}"),
        *_sources(tree.get("sources", [])),
        ("names", f"{tree.get('names', 0):,} known, {tree.get('hidden_keys', 0):,} keys hidden"),
        *_workers(tree.get("workers", [])),
        *_jobs(tree.get("jobs", {})),
        ("version", str(tree.get("version", "?"))),
    ]
    return [head, *_short(problems, MOST_PROBLEMS, "  "), *_table(rows)]


def _verdict(state: str, problems: Sequence[str]) -> str:
    if state != "ok":
        return state
    if not problems:
        return "OK"
    return "1 problem" if len(problems) == 1 else f"{len(problems)} problems"


def _short(lines: Sequence[str], most: int, pad: str) -> list[str]:
    """Returns the first lines, and the count of the remaining ones."""
    shown = [f"{pad}{line}" for line in lines[:most]]
    left = len(lines) - most
    return [*shown, f"{pad}and {left} more: cachefs health"] if left > 0 else shown


def _table(rows: Sequence[Row]) -> list[str]:
    return [f"  {line}" for line in output.columns([list(row) for row in rows])]


def _transport(tree: dict[str, Any]) -> str:
    kind, passthrough = tree.get("transport", "-"), tree.get("passthrough", "")
    return f"{kind}, passthrough: {passthrough}" if passthrough else str(kind)


def _cache(cache: dict[str, Any]) -> list[Row]:
    tiers = [("cache", _tier(tier)) for tier in cache.get("tiers", [])[:MOST_ROWS]]
    memory = cache.get("memory", {})
    hits = cache.get("hits", 0)
    opens = hits + cache.get("misses", 0)
    share = output.percent_of(hits, opens) if opens else "-"
    origin = format_size(cache.get("origin_bytes", 0))
    peers = format_size(cache.get("peer_bytes", 0))
    used, limit = memory.get("used_bytes", 0), memory.get("limit_bytes", 0)
    return [
        *tiers,
        ("memory", f"{format_size(used)} of {format_size(limit)}"),
        ("opens", f"{opens:,}, {share} of them hits; the server counts since it started"),
        ("bytes", f"{origin} from the origin, {peers} from other workers"),
        ("fills", f"{cache.get('fills_in_flight', 0)} in flight"),
    ]


def _tier(tier: dict[str, Any]) -> str:
    used, limit = format_size(tier["used_bytes"]), format_size(tier["limit_bytes"])
    files = f", {tier['files']:,} files" if "files" in tier else ""
    return f"{tier['path']}: {used} of {limit}{files}, {tier['state']}"


def _names(namespaces: Sequence[dict[str, Any]]) -> list[Row]:
    """Returns the rows of an embedded server's sources, or of a node's namespaces."""
    rows: list[Row] = []
    for one in namespaces[:MOST_ROWS]:
        if "master" in one:
            known = one.get("names", {})
            rows.append(("master", f"{one['master']}, {sum_of(known):,} names kept here"))
        else:
            hidden = f", {one['hidden_keys']:,} keys hidden" if one.get("hidden_keys") else ""
            rows.append(("names", f"{one.get('source', '')}: {one.get('names', 0):,}{hidden}"))
            rows += _jobs(one.get("jobs", {}))
    return rows


def _views(views: dict[str, Any]) -> list[Row]:
    rows = views.get("rows", [])
    shown = [
        (
            "view",
            f"{row['path'] or '/'}: "
            + view_text(row["state"], row["since_s"], row["files"], row["bytes"], row["reason"]),
        )
        for row in rows[:MOST_ROWS]
    ]
    more = [("", f"{len(rows) - MOST_ROWS} more: cachefs views")] if rows[MOST_ROWS:] else []
    return shown + more


def view_text(state: str, since_s: float, files: int, size_bytes: int, reason: str) -> str:
    """Returns `native since 2026-01-02 10:00:00, 12,000 files, 1.2 GiB`, or why it is not."""
    when, size = output.time_of(int(since_s * 1e9)), f"{files:,} files, {format_size(size_bytes)}"
    if state == "covered":
        return f"native since {when}, {size}"
    why = f": {printable(reason)}" if reason else ""
    return f"{state} since {when}{why}; {size}"


def sum_of(counts: dict[str, Any]) -> int:
    """Returns the sum of the numbers in a document."""
    return sum(value for value in counts.values() if isinstance(value, int))


def _processes(tree: dict[str, Any]) -> str:
    found = [f"{one['role']} {one['pid']}" for one in tree.get("processes", [])]
    return ", ".join(found[:MOST_ROWS]) + (", ..." if len(found) > MOST_ROWS else "")


def _jobs(jobs: dict[str, Any]) -> list[Row]:
    counts = [f"{jobs[name]} {name}" for name in ("running", "failed") if jobs.get(name)]
    return [("load jobs", ", ".join(counts))] if counts else []


def _sources(sources: Sequence[dict[str, Any]]) -> list[Row]:
    rows = [
        ("source", f"{one['path']}  {one['url']}{'  down' if one.get('origin_down') else ''}")
        for one in sources[:MOST_ROWS]
    ]
    left = len(sources) - MOST_ROWS
    return [*rows, ("", f"and {left} more: cachefs ufs ls")] if left > 0 else rows


def _workers(workers: Sequence[dict[str, Any]]) -> list[Row]:
    owning = [one for one in workers if one.get("weight")]
    rows = [
        (
            "worker",
            f"{one['id'][:8]}  {one['host'] or one['url']}  {one['state']},"
            f" {format_size(one['used_bytes'])} of {format_size(one['capacity_bytes'])}",
        )
        for one in owning[:MOST_ROWS]
    ]
    left = len(owning) - MOST_ROWS
    return [*rows, ("", f"and {left} more: cachefs workers")] if left > 0 else rows
