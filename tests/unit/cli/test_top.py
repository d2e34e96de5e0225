"""What `cachefs top` makes of two looks at counters."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cachefs.cli.commands.top_view import (
    Look,
    NodeSample,
    document,
    frame,
    lines,
    node_sample,
    summed,
)
from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.jobs import JobSpec, JobState, JobStatus
from cachefs.core.placement import View
from cachefs.core.policies import Policy
from tests.unit.cli.conftest import Run
from tests.unit.cli.fake_master import FakeMaster
from tests.unit.cli.fake_node import FakeNode
from tests.unit.cli.test_commands import node, ok, refused

__all__ = ["node"]  # a fixture
JOB = JobStatus(
    7,
    JobState.LOADING,
    [b"train", b"val"],
    2,
    JobSpec((b"train", b"val")),
    files_found=10,
    files_done=4,
    bytes_found=1 << 20,
    bytes_done=1 << 19,
    rate_bytes_s=1 << 18,
    eta_s=2.0,
)


def look(at_s: float, *nodes: NodeSample, **more: Any) -> Look:
    return Look(at_s, "x", [*nodes], **{"paths": {}, "slow": {}, "jobs": [], **more})


def counted(name: str = "a", **counts: int) -> NodeSample:
    return NodeSample(name, used_bytes=10, limit_bytes=40, **counts)


def test_rates_are_what_grew_between_two_looks() -> None:
    old = look(10.0, counted(hits=100, misses=10, origin_bytes=1000))
    new = look(12.0, counted(hits=190, misses=20, origin_bytes=5000, peer_bytes=8))
    rates = frame(old, new).all.rates
    assert rates.opens == 50
    assert rates.hit_share == pytest.approx(0.9)
    assert (rates.origin_bytes_s, rates.peer_bytes_s) == (2000, 4)


def test_a_process_that_was_started_again_counts_from_nothing() -> None:
    old, new = look(0.0, counted(hits=1000, misses=5)), look(1.0, counted(hits=3, misses=1))
    assert frame(old, new).all.rates.opens == 4


def test_who_was_not_there_before_has_no_rates_yet() -> None:
    rates = frame(look(0.0), look(1.0, counted(hits=9))).nodes[0].rates
    assert (rates.opens, rates.hit_share) == (0.0, None)


def test_the_sum_of_workers() -> None:
    old = look(0.0, counted("a", hits=0, misses=0, evicted_bytes=1), counted("b", hits=0, misses=1))
    new = look(1.0, counted("a", hits=3, misses=1, evicted_bytes=6), counted("b", hits=0, misses=5))
    whole = frame(old, new).all
    assert (whole.look.used_bytes, whole.look.limit_bytes) == (20, 80)
    assert whole.rates.hit_share == pytest.approx(3 / 8)
    assert whole.rates.evicted_bytes_s == 5


def test_paths_by_how_much_they_are_used() -> None:
    few = {"hits": 5, "misses": 5, "origin_bytes": 900, "recent_hits": 1, "recent_misses": 1}
    many = {"hits": 99, "misses": 1, "origin_bytes": 0, "recent_hits": 49, "recent_misses": 1}
    old = look(0.0, counted(hits=1), paths={"few": {**few, "origin_bytes": 100}})
    rows = frame(old, look(1.0, counted(hits=2), paths={"few": few, "many": many})).paths
    assert [row.path for row in rows] == ["many", "few"]
    assert rows[0].rates.opens == 10
    assert rows[0].rates.hit_share == pytest.approx(0.98)
    assert rows[1].total_share == 0.5
    assert rows[1].rates.origin_bytes_s == 800


def test_paths_of_several_workers_are_added() -> None:
    assert summed([{"x": {"hits": 1}}, {"x": {"hits": 2}, "y": {"hits": 4}}]) == {
        "x": {"hits": 3},
        "y": {"hits": 4},
    }


def test_lines_for_people() -> None:
    slow = {
        "s3://b/big": {"took_s": 2.5, "bytes": 1 << 20, "ago_s": 3},
        "s3://b/quick": {"took_s": 0.01, "bytes": 5, "ago_s": 3},
    }
    paths = {"s3://b/train": {"hits": 1, "recent_hits": 1}}
    nodes = (counted("a", hits=1), counted("b", hits=1))
    shown = frame(look(0.0, *nodes), look(1.0, *nodes, slow=slow, jobs=[JOB], paths=paths))
    text = "\n".join(lines(shown, 0.0))
    assert "hits - of 0 opens/s" in text
    assert "~100%" in text
    assert "2.5s" in text
    assert "quick" not in text
    assert "/train and 1 more" in text
    assert "4 of 10+" in text


def test_a_document_for_programs_says_the_same() -> None:
    found = document(frame(look(0.0, counted()), look(2.0, counted(hits=4), jobs=[JOB])))
    assert found["all"]["opens_s"] == 2.0
    assert found["jobs"][0]["paths"] == ["train", "val"]
    assert msgspec.json.decode(msgspec.json.encode(found)) == found


def test_a_worker_of_an_older_version_has_fewer_facts() -> None:
    old = node_sample("x", "serving", {"origin_bytes": 5}, used_bytes=1, limit_bytes=2)
    assert (old.origin_bytes, old.hits, old.fills) == (5, 0, 0)


# ---- the command ---------------------------------------------------------------------------------

PATHS = {"s3://b/train": {"hits": 3, "misses": 1, "recent_hits": 3, "recent_misses": 1}}
CACHE = {"used_bytes": 10, "limit_bytes": 40, "hits": 3, "paths": PATHS, "slow_fills": {}}


@pytest.fixture
def served(node: FakeNode) -> FakeNode:
    node.status = {**node.status, "cache": CACHE}
    node.jobs = {JOB.job: [JOB]}
    return node


def test_one_table_where_there_is_no_terminal(served: FakeNode, run: Run) -> None:
    text = ok(run("top", "/mnt/data", "--interval", "0.2s"))
    assert text.startswith("/mnt/data (s3://bucket/p)\ncached 10 B of 40 B")
    assert "~75%" in text
    assert "/train and 1 more" in text


def test_a_line_for_each_look(served: FakeNode, run: Run) -> None:
    text = ok(run("top", "/mnt/data", "--interval", "0.2s", "--json", "-n", "2"))
    (first, second) = [msgspec.json.decode(line) for line in text.splitlines()]
    assert first["paths"][0]["hit_share"] == 0.75
    assert second["over_s"] >= 0.2
    assert [job["job"] for job in second["jobs"]] == [7]


def test_of_a_cluster_all_workers_are_shown(run: Run) -> None:
    facts = {"hits": 3, "paths": PATHS, "slow_fills": {}}
    rows = [
        c.WorkerRow(
            f"{n}" * 32, f"http://h{n}:1", "h", "serving", 1.0, 40, 10, 1, 1, 0.5, "", facts
        )
        for n in range(2)
    ]
    master = FakeMaster(
        {
            c.ListWorkers: lambda _: c.WorkerTable(View(1), rows),
            m.ListJobs: lambda _: m.JobTable([JOB]),
            c.MasterStatus: lambda _: c.MasterStatusReply({"unsettled_since_s": 1.0}),
            m.GetPolicies: lambda _: m.PoliciesAt(Policy(), {}, Policy()),
        }
    )
    with master.listening():
        text = ok(run("top", f"cachefs://{master.url[7:]}", "--interval", "0.2s"))
    assert "cached 20 B of 80 B" in text
    assert "11111111 (h1:1)" in text
    assert text.splitlines()[1].startswith("warning: NOT_SETTLED")
    assert "/train and 1 more" in text


@pytest.mark.parametrize(("interval", "why"), [("0.01s", "bad interval"), ("x", "bad duration")])
def test_what_is_no_interval(interval: str, why: str, run: Run) -> None:
    assert why in refused(run("top", "/mnt/data", "--interval", interval))


def test_status_leaves_to_top_what_that_shows_better(served: FakeNode, run: Run) -> None:
    assert "train" not in ok(run("status", "/mnt/data"))
    assert "s3://b/train" in ok(run("status", "/mnt/data", "--json"))
