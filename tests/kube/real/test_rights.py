"""What our containers may do, as the kernel shows it: read from /proc on the real node. [S-pods]"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kube.real.cluster import Cluster
from tests.kube.real.manifests import DATA, SERVICE_USER, keeper
from tests.kube.real.plugin import Plugin
from tests.services.processes import families

SYS_ADMIN = 1 << 21  # capability.h
SECRET = re.compile(rb"[^=]*(KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL)[^=]*=", re.IGNORECASE)
LISTED = 1  # lines of /proc/net/tcp without a socket


@pytest.fixture(scope="module", autouse=True)
def volume(cluster: Cluster, plugin: Plugin, space: str) -> None:
    """A volume in use, so that the fuse container serves a mount."""
    cluster.apply(keeper("rights", space, DATA))
    cluster.wait("pod/rights", "condition=Ready", namespace=space)
    plugin.wait_until_served()


def _processes(plugin: Plugin, app: str, container: str) -> list[Path]:
    return [Path(f"/proc/{pid}") for pid in families([plugin.pid(app, container)])]


def _status(process: Path) -> dict[str, str]:
    lines = (process / "status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@pytest.mark.parametrize(
    ("app", "container", "allowed"),
    [("node", "fuse", SYS_ADMIN), ("holder", "holder", 0), ("worker", "worker", 0)],
)
def test_no_process_has_more_capabilities(
    plugin: Plugin, app: str, container: str, allowed: int
) -> None:
    for process in _processes(plugin, app, container):
        status = _status(process)
        held = {name: int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")}
        assert not any(value & ~allowed for value in held.values()), (status["Name"], held)
        assert status["NoNewPrivs"] == "1"


def test_the_worker_is_no_root_user(plugin: Plugin) -> None:
    for process in _processes(plugin, "worker", "worker"):
        assert _status(process)["Uid"].split() == [str(SERVICE_USER)] * 4


@pytest.mark.parametrize(
    ("app", "container"), [("node", "csi"), ("node", "fuse"), ("holder", "holder")]
)
def test_no_process_has_a_key_or_a_tcp_socket(plugin: Plugin, app: str, container: str) -> None:
    for process in _processes(plugin, app, container):
        variables = (process / "environ").read_bytes().split(b"\0")
        assert [one for one in variables if SECRET.match(one)] == []
        for name in ("tcp", "tcp6", "udp", "udp6"):  # of the pod's own network namespace
            assert len((process / "net" / name).read_text().splitlines()) == LISTED
