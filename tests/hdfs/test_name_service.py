"""A source on a name service: found by its configuration directory, also after a failover."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from cachefs.core.errors import CacheFSError
from cachefs.core.model import UfsSpec
from connectors.base import Connector
from connectors.compose import open_connector
from connectors.meter import Meter
from tests.services.hdfs_files import write
from tests.services.hdfs_ha import NAMES, NameService, name_service
from tests.services.processes import wait_until

LIMIT_S = 15.0  # 12 s, and some for a busy machine; two calls that wait take 16 s


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NameService]:
    with name_service(tmp_path_factory.mktemp("name-service")) as started:
        yield started


@pytest.fixture
def connector(service: NameService) -> Iterator[Connector]:
    spec = UfsSpec(f"{service.url}/d", {"conf_dir": str(service.conf_dir)})
    opened = open_connector(spec, deadline_s=5, meter=Meter())
    yield opened
    opened.close()


def read(connector: Connector) -> bytes:
    try:
        return bytes(connector.read_all(b"f", connector.stat(b"f").fingerprint))
    except CacheFSError as error:
        print(error.one_line())
        return b""


def test_a_failover(
    service: NameService, connector: Connector, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = NAMES
    write(service.client(), "/d/f", b"of the name service")
    assert read(connector) == b"of the name service"
    service.namenodes[first].kill()
    service.activate(second, force=True)
    wait_until(lambda: read(connector) == b"of the name service", "the other NameNode is found")
    connector.check()
    monkeypatch.setenv("HADOOP_CONF_DIR", str(service.conf_dir))
    fresh = open_connector(UfsSpec(f"{service.url}/d"), deadline_s=5, meter=Meter())
    assert read(fresh) == b"of the name service"
    fresh.close()


def test_a_silent_namenode_is_left_for_the_active_one(
    service: NameService, connector: Connector
) -> None:
    active = next(name for name in NAMES if service.state(name) == "active")
    other = next(name for name in NAMES if name != active)
    if not service.namenodes[other].is_running:
        service.namenodes[other].start()
    wait_until(lambda: service.may_follow(other), "the other NameNode can take over", 60.0)
    write(service.client(), "/d/f", b"of the name service")
    assert read(connector) == b"of the name service"
    with service.namenodes[active].stopped():
        service.activate(other, force=True)
        started = time.monotonic()
        assert read(connector) == b"of the name service"
        assert time.monotonic() - started < LIMIT_S
