"""The alerts: promtool accepts them, each fires when it should and only then, names metrics that
exist, and leads to a section that says what to do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import yaml

from scripts.check_docs import FENCE, HEADING, anchor
from tests.deploy.alert_cases import LABELS, PAIRS, Case
from tests.deploy.promtool import ALERTS, ROOT, run_tool, selectors, try_rules
from tests.services.metrics_page import documented

SEVERITIES: Final = {"critical", "warning", "info"}
OF_PROMETHEUS: Final = {"job", "instance", "le"}
SUFFIX: Final = re.compile(r"_(bucket|count|sum)$")


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def known_labels() -> dict[str, set[str]]:
    """Returns the labels of each documented metric; of a histogram also under its series' names."""
    found: dict[str, set[str]] = {"up": OF_PROMETHEUS}
    for name, kind, labels in documented("cachefs_"):
        endings = ("_bucket", "_count", "_sum") if kind == "histogram" else ("",)
        found |= {f"{name}{ending}": {*labels, *OF_PROMETHEUS} for ending in endings}
    return found


def test_promtool_accepts_the_rules() -> None:
    done = run_tool("promtool", "check", "rules", "--lint=all", "--lint-fatal", ALERTS)
    assert done.returncode == 0, done.stdout
    assert f"{len(rules())} rules found" in done.stdout


def test_every_alert_says_what_to_do() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    sections = {anchor(heading) for heading in HEADING.findall(FENCE.sub("", page))}
    for rule in rules():
        notes = rule["annotations"]
        assert rule["labels"]["severity"] in SEVERITIES, rule["alert"]
        assert set(notes) == {"summary", "description", "runbook"}, rule["alert"]
        document, _, section = notes["runbook"].partition("#")
        assert document == "docs/operations.md"
        assert section in sections, notes["runbook"]


def test_the_runbook_names_every_alert() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    named = set(re.findall(r"`(CacheFS\w+)`", page))
    assert named == {rule["alert"] for rule in rules()}


def test_every_metric_and_label_of_the_alerts_is_documented() -> None:
    labels = known_labels()
    for rule in rules():
        for selector in selectors(rule["expr"]):
            name, _, matchers = selector.partition("{")
            assert name in labels, rule["alert"]
            assert set(re.findall(r"(\w+)[=!]", matchers)) <= labels[name], rule["alert"]


def rendered(text: str, case: Case, labels: dict[str, str]) -> str:
    """Returns an annotation with a case's labels and value, as Prometheus would expand it."""
    named = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: labels[found[1]], text)
    return re.sub(r"\{\{ \$value.*?\}\}", case.value, named)


def alert_test(case: Case, rule: dict[str, Any]) -> dict[str, Any]:
    expected = []
    if case.labels is not None:
        labels = {key: LABELS[key] for key in case.keeps} | dict(case.labels)
        notes = {name: rendered(text, case, labels) for name, text in rule["annotations"].items()}
        expected = [{"exp_labels": labels | rule["labels"], "exp_annotations": notes}]
    test = {"eval_time": case.at, "alertname": case.alert, "exp_alerts": expected}
    return {"input_series": case.input_series, "alert_rule_test": [test]}


def test_every_alert_fires_when_it_should_and_only_then(tmp_path: Path) -> None:
    by_name = {rule["alert"]: rule for rule in rules()}
    assert {pair.fires.alert for pair in PAIRS} == set(by_name)
    assert all(pair.quiet for pair in PAIRS)
    cases = [case for pair in PAIRS for case in (pair.fires, *pair.quiet)]
    groups = [alert_test(case, by_name[case.alert]) for case in cases]
    assert try_rules(tmp_path, groups, [ALERTS]) == ""


def test_a_wrong_expectation_is_found(tmp_path: Path) -> None:
    case = Case("CacheFSWorkerLost", "2m", {'master_workers{state="lost"}': "0 2x5"})
    rule = next(rule for rule in rules() if rule["alert"] == case.alert)
    assert "FAILED" in try_rules(tmp_path, [alert_test(case, rule)], [ALERTS])
