"""Several replicas, of which one acts; and what a controller costs with many objects."""

from __future__ import annotations

import time

from tests.kube.real.operator.lab import LIMIT_S, Lab, Replica, dataset, passed, pod

DATASETS = 50
PODS = 200
SCHEDULED_S = 5.0
RSS_BYTES = 100 << 20
IDLE = 0.05  # of a core
IDLE_S = 20.0
SLACK = 2.0
TAKEN_S = 15.0 + 10.0  # the Lease, and some for a busy machine
GIVEN_BACK_S = 10.0  # 3 s on a quiet machine; a Lease that is not given back lasts for 12 s


def waits(replica: Replica) -> bool:
    return replica.metrics().get("cachefs_operator_leader") == 0.0


def test_another_replica_acts_when_one_is_killed(lab: Lab, space: str, replica: Replica) -> None:
    second = lab.start("b")
    lab.until(lambda: waits(second), "the second replica waits")
    source = lab.source("replicas")
    names = [f"set{number}" for number in range(6)]
    lab.control.apply(*(dataset(space, name, source) for name in names))
    replica.kill()
    killed_s = time.monotonic()
    lab.until(lambda: second.acts, "the second replica acts")
    print(f"another replica acts {time.monotonic() - killed_s:.1f} s after the kill")
    assert time.monotonic() - killed_s <= TAKEN_S
    for name in names:
        lab.until_phase(space, name, "Loaded")
    paths = [job.paths for job in lab.jobs() if job.paths[0].startswith(f"/{space}/")]
    assert sorted(paths) == sorted([f"/{space}/{name}"] for name in names)


def test_a_replica_that_is_stopped_gives_the_lease_back(lab: Lab, replica: Replica) -> None:
    second = lab.start("b")
    lab.until(lambda: waits(second), "the second replica waits")
    assert replica.stop() == 0
    stopped_s = time.monotonic()
    lab.until(lambda: second.acts, "the second replica acts")
    print(f"another replica acts {time.monotonic() - stopped_s:.1f} s after the stop")
    assert time.monotonic() - stopped_s <= GIVEN_BACK_S


def test_many_datasets_and_pods(lab: Lab, space: str, replica: Replica) -> None:
    source = lab.source("many", files=20)
    names = [f"set{number:02}" for number in range(DATASETS)]
    pods = [
        pod(space, f"p{number:03}", f"{names[number % DATASETS]},{names[-1]}")
        for number in range(PODS)
    ]
    lab.control.apply(*pods)
    lab.control.apply(*(dataset(space, name, source) for name in names))
    lab.until(lambda: not lab.gated(space), "every gate is open", 2 * LIMIT_S)
    opened_s = time.time()
    lab.until(lambda: not lab.unscheduled(space), "every pod has a node")
    scheduled_s = time.time()
    ended_s = max(job.ended_at_s for job in lab.jobs() if job.paths[0].startswith(f"/{space}/"))
    print(f"{PODS} gates are open {opened_s - ended_s:.1f} s after the last load's end")
    print(f"{PODS} pods have a node {scheduled_s - ended_s:.1f} s after the last load's end")
    assert scheduled_s - ended_s <= SCHEDULED_S * SLACK
    _costs_little(lab, replica)


def _costs_little(lab: Lab, replica: Replica) -> None:
    began_s, cpu_s = time.monotonic(), replica.cpu_s
    lab.until(passed(IDLE_S), "a time without anything to do")
    share = (replica.cpu_s - cpu_s) / (time.monotonic() - began_s)
    print(f"idle: {100 * share:.1f} % of a core, {replica.rss_bytes / 2**20:.0f} MiB")
    assert share <= IDLE * SLACK
    assert replica.rss_bytes <= RSS_BYTES * SLACK
