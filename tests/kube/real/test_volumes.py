"""Volumes on the real node: pods of any user in a restricted namespace read right bytes, while pods
and containers of ours are killed, deleted and upgraded. [S-pods]"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

import pytest

from tests.kube.real import reader
from tests.kube.real.cluster import Cluster
from tests.kube.real.image import TAGS
from tests.kube.real.manifests import CSI_METRICS, DATA, Manifest, checker, keeper, trainer
from tests.kube.real.plugin import Plugin
from tests.kube.real.trainers import Trainers, longest
from tests.services.processes import wait_until

pytestmark = pytest.mark.timeout(600)

LIMIT_S = 400.0  # of a reader; tests end it before
AWAY_S = 20.0
# The machine runs a control plane and four readers on two shared CPUs. A quiet one takes 0.3 s to
# read a file that is open and complete, whatever happens, and 0.5 s and 3 s to open one meanwhile.
READ_S = 2.0  # without the driver's pods for 20 s, too
ROLL_S = 2.0
FAULT_S = 15.0
REPUBLISH_S = 60.0
GONE_S = 40.0  # for the volume of a pod that was deleted while there was no driver


def test_readers_notice_no_fault_and_no_upgrade(
    cluster: Cluster, plugin: Plugin, space: str
) -> None:
    readers = Trainers(cluster, space, ["reader-0", "reader-1"])
    readers.start(DATA, LIMIT_S)
    limits = {"nothing": FAULT_S}
    events: list[tuple[str, Callable[[], None], float]] = [
        ("node pod upgraded", lambda: plugin.roll(TAGS[1]), ROLL_S),
        ("node pod downgraded", lambda: plugin.roll(TAGS[0]), ROLL_S),
        ("an agent that cannot start", plugin.roll_to_one_that_cannot_start, ROLL_S),
        ("fuse container killed", lambda: plugin.kill("node", "fuse"), FAULT_S),
        ("client killed", plugin.kill_client, FAULT_S),
        ("csi container killed", lambda: plugin.kill("node", "csi"), FAULT_S),
        ("node pod deleted", lambda: plugin.delete("node"), FAULT_S),
        ("holder killed", lambda: plugin.kill("holder", "holder"), FAULT_S),
        ("holder deleted", lambda: plugin.delete("holder"), FAULT_S),
        ("master killed", lambda: plugin.kill("master", "master"), ROLL_S),
        ("worker deleted", lambda: plugin.delete("worker"), FAULT_S),
    ]
    for text, event, limit_s in events:
        readers.under(text, event)
        limits[text] = limit_s
    away = readers.under("no node pod for 20 s", lambda: _be_away(cluster, plugin, space))
    limits[away.text] = away.ended_s - away.began_s
    for name, seen in readers.finish().items():
        print(name, seen.files, "files", seen.parts, "parts", seen.first_errors)
        assert (seen.errors, seen.wrong) == (0, 0), seen.first_errors
        for span in readers.spans:
            most = longest(seen, span)
            print(f"{span.text}: {span.ended_s - span.began_s:.1f} s; longest {most}")
            assert most.read_s <= READ_S, span
            assert most.open_s <= limits[span.text], span
    readers.delete()


def test_an_upgrade_that_fails_leaves_a_driver(
    cluster: Cluster, plugin: Plugin, space: str
) -> None:
    plugin.roll_to_one_that_cannot_start()
    cluster.apply(keeper("after-upgrade", space, DATA))
    cluster.wait("pod/after-upgrade", "condition=Ready", namespace=space)
    cluster.kubectl("delete", "pod", "after-upgrade", "-n", space)


def test_a_lost_mount_is_made_anew_and_its_pod_named(
    cluster: Cluster, plugin: Plugin, space: str
) -> None:
    """The holder and the fuse container end at the same moment: the kernel has no descriptor of
    the mount any more."""
    cluster.apply(keeper("lost", space, DATA))
    cluster.wait("pod/lost", "condition=Ready", namespace=space)
    place = _place_of(cluster, plugin, space, "lost")
    plugin.lose()
    remedy = f"restart the pod {space}/lost"
    wait_until(lambda: remedy in _events_of(cluster, space, "lost"), "an event", REPUBLISH_S)
    count = f'cachefs_csi_lost_volumes_total{{pod="{space}/lost"}} 1.0'
    assert count in plugin.metrics(CSI_METRICS)
    wait_until(lambda: place in plugin.mounts(), "the volume is mounted anew", REPUBLISH_S)
    cluster.kubectl("delete", "pod", "lost", "-n", space)
    cluster.apply(small_checker("lost", space))
    plugin.wait_until_served()
    cluster.wait("pod/lost", "condition=Ready", namespace=space)
    cluster.kubectl("delete", "pod", "lost", "-n", space)


def small_checker(name: str, space: str) -> Manifest:
    """Returns a pod that compares a small file again and again."""
    file = reader.name_of(0)
    digest = hashlib.sha256(reader.small_body(file)).hexdigest()
    return checker(name, space, DATA, file, digest)


def _events_of(cluster: Cluster, space: str, pod: str) -> str:
    chosen = f"involvedObject.name={pod}"
    events = cluster.get("events", "-n", space, "--field-selector", chosen)["items"]
    return "\n".join(event["message"] for event in events)


def _be_away(cluster: Cluster, plugin: Plugin, space: str) -> None:
    """Removes the node pods for some seconds; a pod with a volume is deleted meanwhile."""
    cluster.apply(trainer("deleted", space, DATA, LIMIT_S))
    cluster.wait("pod/deleted", "condition=Ready", namespace=space)
    place = _place_of(cluster, plugin, space, "deleted")
    began_s = time.monotonic()
    plugin.remove_node_pods()
    _wait_s(began_s + AWAY_S / 2)
    cluster.kubectl("delete", "pod", "deleted", "-n", space, "--wait=false")
    _wait_s(began_s + AWAY_S)
    assert place in plugin.mounts()
    plugin.create_node_pods()
    back_s = time.monotonic()
    wait_until(lambda: place not in plugin.mounts(), "the volume is removed", GONE_S)
    print(f"the deleted pod's volume was removed after {time.monotonic() - back_s:.1f} s")


def _wait_s(until_s: float) -> None:
    """Waits until a moment: the absence is the event, and has a length."""
    wait_until(lambda: time.monotonic() >= until_s, "the time has passed", AWAY_S * 2)


def _place_of(cluster: Cluster, plugin: Plugin, space: str, pod: str) -> str:
    uid = cluster.get("pod", pod, "-n", space)["metadata"]["uid"]
    (place,) = [place for place in plugin.mounts() if f"/pods/{uid}/" in place]
    return place
