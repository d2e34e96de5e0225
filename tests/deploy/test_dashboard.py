"""The dashboard: each panel describes itself, names metrics that exist, and shows data of a real
cluster."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.deploy.pages import EVALUATED_AT, TIER, Node, cluster_pages, make_source, series_of, work
from tests.deploy.promtool import ROOT, run_tool, selectors, try_rules
from tests.deploy.test_alerts import known_labels, rules
from tests.services.cluster import Cluster

PAGE: Final = ROOT / "deploy" / "grafana" / "cachefs.json"
COLUMNS: Final = 24
UNITS: Final = {"short", "percentunit", "bytes", "Bps", "ops", "reqps", "s"}
GROUPED: Final = re.compile(r"\bby \(([^)]*)\)")
# Each of these panels answers a question that the dashboard is for.
ASKED: Final = {
    "Hit ratio", "Bytes by source", "Tier use", "Requests for bytes", "Errors", "Fill latency",
    "Jobs by state", "Mounts", "Take-overs", "Longest pause", "Evicted bytes", "Workers by state",
}  # fmt: skip


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(PAGE.read_text())
    return found


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def queries() -> list[str]:
    """Returns every query, with values for the variables."""
    texts = [target["expr"] for panel in panels() for target in panel["targets"]]
    return [filled(text) for text in texts]


def filled(query: str) -> str:
    for variable, value in (("$__rate_interval", "4m"), ("$job", ".*"), ("$instance", ".*")):
        query = query.replace(variable, value)
    return query


def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
    place = panel["gridPos"]
    across = range(place["x"], place["x"] + place["w"])
    return set(itertools.product(across, range(place["y"], place["y"] + place["h"])))


def test_the_file_is_that_of_its_panels() -> None:
    script = str(ROOT / "scripts" / "dashboard.py")
    done = subprocess.run([sys.executable, script, "--check"], timeout=60, check=False)
    assert done.returncode == 0, "run: python scripts/dashboard.py"


def test_panels_have_ids_titles_and_descriptions_of_their_own() -> None:
    every = dashboard()["panels"]
    ids = [panel["id"] for panel in every]
    assert len(ids) == len(set(ids))
    assert {panel["title"] for panel in every} >= ASKED
    for panel in panels():
        assert re.search(r"[.`]$", panel["description"]), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        letters = [target["refId"] for target in panel["targets"]]
        assert letters
        assert len(letters) == len(set(letters))


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        mine = cells(panel)
        assert max(x for x, _ in mine) < COLUMNS
        assert not taken & mine, panel["title"]
        taken |= mine


def test_every_query_uses_the_variables() -> None:
    names = {variable["name"] for variable in dashboard()["templating"]["list"]}
    assert names == {"datasource", "job", "instance"}
    for panel in panels():
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            for selector in selectors(target["expr"]):
                assert selector.endswith('job=~"$job",instance=~"$instance"}'), selector


def test_every_metric_and_label_is_documented() -> None:
    labels = known_labels()
    for query in queries():
        chosen = selectors(query)
        names = {selector.partition("{")[0] for selector in chosen}
        assert names <= set(labels), query
        in_matchers = {name for one in chosen for name in re.findall(r"(\w+)[=!]", one)}
        in_groups = {name for one in GROUPED.findall(query) for name in one.split(", ")}
        assert in_matchers | in_groups <= set().union(*(labels[name] for name in names)), query


def test_promtool_parses_every_query() -> None:
    for query in set(queries()):
        done = run_tool("promtool", "--experimental", "promql", "format", query)
        assert done.returncode == 0, f"{query}: {done.stdout}"


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, str]]]:
    """Returns the series of a real cluster, and those of a node of Kubernetes, after some work."""
    root = tmp_path_factory.mktemp("pages")
    source, node = make_source(root), Node()
    with Cluster(root / "cluster", {}) as cluster:
        cluster.start(2, "--admission", "always", size=TIER)
        cluster.add_ufs(f"file://{source}", "/data", "--sync-interval", "1h")
        mount = cluster.mount(0, "/data")
        before = {**cluster_pages(cluster), **node.pages()}
        work(cluster, mount, source)
        node.work()
        after = {**cluster_pages(cluster), **node.pages()}
        cluster.workers[0].umount(mount)
        yield series_of(before, after)


def without_data(series: list[dict[str, str]], queries: set[str], directory: Path) -> set[str]:
    """Returns the queries that give no sample, as Prometheus evaluates them."""
    tests = [
        {
            "expr": f"count({query}) > bool 0",
            "eval_time": EVALUATED_AT,
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        for query in sorted(queries)
    ]
    said = try_rules(directory, [{"input_series": series, "promql_expr_test": tests}])
    found = {query for query in queries if json.dumps(f"count({query}) > bool 0") in said}
    assert bool(found) == bool(said), said
    return found


def test_every_query_gives_data_of_a_real_cluster(
    series: list[dict[str, str]], tmp_path: Path
) -> None:
    assert without_data(series, set(queries()), tmp_path) == set()


def test_every_selector_of_the_alerts_finds_series_of_a_real_cluster(
    series: list[dict[str, str]], tmp_path: Path
) -> None:
    chosen = {selector for rule in rules() for selector in selectors(rule["expr"])}
    assert without_data(series, chosen, tmp_path) == set()


def test_a_query_without_data_is_found(series: list[dict[str, str]], tmp_path: Path) -> None:
    wrong = 'cachefs_master_jobs{state="faild"}'
    assert without_data(series, {wrong, "up"}, tmp_path) == {wrong}
