"""The metrics of the controller are those of docs/metrics.md."""

from __future__ import annotations

from prometheus_client import generate_latest

from cachefs.kube.facts import Facts, registry_of
from cachefs.kube.status import Phase
from tests.services.metrics_page import documented, exported


def test_the_metrics_are_documented() -> None:
    facts = Facts(phases={**dict.fromkeys(Phase, 0), Phase.LOADED: 2})
    facts.handled["Dataset", "ok"] += 1
    text = generate_latest(registry_of(facts)).decode()
    assert exported(text, "cachefs_operator_") == documented("cachefs_operator_")
    assert 'cachefs_operator_datasets{phase="Loaded"} 2.0' in text
    assert 'cachefs_operator_datasets{phase="Failed"} 0.0' in text
    assert 'cachefs_operator_handled_total{kind="Pod",result="waits"} 0.0' in text
