"""The metrics of the driver are those of docs/metrics.md."""

from __future__ import annotations

import pytest
from prometheus_client import generate_latest

from cachefs.core.errors import Unreachable
from cachefs.csi.metrics import MOST_PODS, DriverMetrics
from tests.services.metrics_page import documented, exported


def test_the_metrics_are_documented() -> None:
    metrics = DriverMetrics()
    with metrics.publish():
        pass
    metrics.orphans.labels("mount").inc()
    metrics.volume_lost("team/pod")
    text = generate_latest(metrics.registry).decode()
    found = exported(text, "cachefs_csi_")
    # prometheus_client adds the time of creation of each.
    without_times = {one for one in found if not one[0].endswith("_created")}
    assert without_times == documented("cachefs_csi_")


def test_a_publish_is_counted_by_its_result() -> None:
    metrics = DriverMetrics()
    with pytest.raises(Unreachable), metrics.publish():
        raise Unreachable("away")
    with pytest.raises(OSError), metrics.publish():
        raise OSError(5, "broken")
    text = generate_latest(metrics.registry).decode()
    assert 'cachefs_csi_publishes_total{result="unreachable"} 1.0' in text
    assert 'cachefs_csi_publishes_total{result="os-error"} 1.0' in text
    assert "cachefs_csi_publish_seconds_count 0.0" in text


def test_the_last_pods_with_a_lost_volume_are_named() -> None:
    metrics = DriverMetrics()
    for number in range(MOST_PODS + 1):
        metrics.volume_lost(f"team/pod-{number}")
        metrics.volume_lost(f"team/pod-{number}")
    text = generate_latest(metrics.registry).decode()
    assert text.count("cachefs_csi_lost_volumes_total{") == MOST_PODS
    assert 'lost_volumes_total{pod="team/pod-0"}' not in text
    assert f'lost_volumes_total{{pod="team/pod-{MOST_PODS}"}} 2.0' in text
