"""The /metrics pages of a real cluster and of the node processes of Kubernetes, before and after
some work, as series for promtool."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from cachefs.core.errors import Unreachable
from cachefs.csi.metrics import DriverMetrics
from cachefs.fuse.agent.facts import AgentFacts
from cachefs.fuse.agent.metrics import registry_of
from cachefs.fuse.deposits import Event
from master.server.alarm_metrics import AlarmCollector
from tests.services.cluster import Cluster, Machine
from tests.services.metrics_page import page_of
from tests.services.processes import wait_until

FILES: Final = 6
FILE_BYTES: Final = 100_000
TIER: Final = "32MiB"  # of each worker: the large files fill both, and evict each other
LARGE: Final = 12
LARGE_BYTES: Final = 6 << 20
EVALUATED_AT: Final = "2m"  # the samples are those before the work, and twice those after it
WITH_TLS: Final = {
    "certificate": {"path": "/tls.crt", "expires_at_s": 2e9}, "workers": [], "quotas": [],
}  # fmt: skip
Pages = dict[str, str]  # by instance


def make_source(root: Path) -> Path:
    """Returns a directory of small files in `small` and of large ones in `large`."""
    source = root / "source"
    for name, count, size in (("small", FILES, FILE_BYTES), ("large", LARGE, LARGE_BYTES)):
        (source / name).mkdir(parents=True)
        for number in range(count):
            (source / name / f"{number}.jpg").write_bytes(bytes([number]) * size)
    return source


def cluster_pages(cluster: Cluster) -> Pages:
    """Returns what every process of the cluster says at /metrics."""
    machines = (cluster.master, *cluster.workers)
    pages = {machine.url: page_of(machine.url, cluster.headers) for machine in machines}
    return {url.removeprefix("http://"): page for url, page in pages.items()}


def work(cluster: Cluster, mount: Path, source: Path) -> None:
    """Reads, evicts and loads, so that every counter of a healthy cluster moves; then a read fails,
    and a call."""
    cluster.workers[0].run("quota", mount, "1GiB")
    for _ in range(2):
        for path in sorted((mount / "small").iterdir()):
            assert len(path.read_bytes()) == FILE_BYTES
    node = cluster.workers[0]
    for path in sorted((mount / "large").iterdir()):
        assert len(path.read_bytes()) == LARGE_BYTES
    node.run("load", mount / "small", "--wait")
    _fail(node, cluster, mount / "small", source / "small")
    wait_until(lambda: "quota_used_bytes{" in "".join(cluster_pages(cluster).values()), "a beat")


def _fail(node: Machine, cluster: Cluster, mount: Path, source: Path) -> None:
    node.run("free", mount / "1.jpg")
    (source / "1.jpg").unlink()
    try:
        (mount / "1.jpg").read_bytes()
    except OSError:
        pass
    node.run("ufs", "rm", "/nothing", "--master", cluster.master.url, codes=(1,))


class Node:
    """The metrics of a CSI driver, of an agent, and of certificates, kept by their own code."""

    def __init__(self) -> None:
        self._driver = DriverMetrics()
        self._agent = AgentFacts()
        self.work()

    def work(self) -> None:
        """Publishes, fails to, removes, loses a volume, takes a mount over."""
        with self._driver.publish():
            pass
        try:
            with self._driver.publish():
                raise Unreachable("away")
        except Unreachable:
            pass
        self._driver.orphans.labels("mount").inc()
        self._driver.volume_lost("team/pod")
        self._agent.started("lost")
        for verb, now in (("PUT", 1.0), ("FREE", 2.0), ("CLAIM", 3.0)):
            self._agent.note(Event(verb, "key", "agent"), "agent", now)

    def pages(self) -> Pages:
        def page(registry: CollectorRegistry) -> str:
            return generate_latest(registry).decode()

        alarms = CollectorRegistry()
        alarms.register(AlarmCollector(lambda: WITH_TLS))
        return {
            "tls": page(alarms),
            "csi": page(self._driver.registry),
            "agent": page(registry_of(self._agent)),
        }


def series_of(before: Pages, after: Pages) -> list[dict[str, str]]:
    """Returns the samples of two scrapes as input series of promtool."""
    earlier, later = _samples(before), _samples(after)
    return [
        {"series": name, "values": f"{earlier.get(name, '_')} {value} {value}"}
        for name, value in later.items()
    ]


def _samples(pages: Pages) -> dict[str, str]:
    found = {}
    for instance, page in pages.items():
        target = {"job": "cachefs", "instance": instance}
        found[_series("up", target)] = "1"
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                found[_series(sample.name, {**sample.labels, **target})] = repr(sample.value)
    return found


def _series(name: str, labels: Mapping[str, str]) -> str:
    pairs = (f'{key}="{value}"' for key, value in labels.items())
    return f"{name}{{{','.join(pairs)}}}"
