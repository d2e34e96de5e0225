"""A mount without a cluster answers Prometheus, too, where it was asked to."""

from __future__ import annotations

import os
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from cachefs.launcher.state import StateHome
from tests.integration.conftest import Node
from tests.services.metrics_page import documented, exported
from tests.services.processes import wait_until
from tests.services.server_process import free_port


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as reply:
        text: str = reply.read().decode()
        return text


def test_a_mounts_server_answers_prometheus(node: Node, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a").write_bytes(b"x" * 5000)
    url = f"http://127.0.0.1:{free_port()}"
    mounted = node.mount(f"file://{source}", "--metrics", url.removeprefix("http://"))
    assert (mounted / "a").read_bytes() == b"x" * 5000
    text = get(f"{url}/metrics")
    assert 'cachefs_worker_bytes_total{source="origin"} 5000.0' in text
    names = {name for name, _, _ in exported(text, "cachefs_")}
    assert names < {name for name, _, _ in documented("cachefs_worker_")} | {
        "cachefs_client_events_total"
    }
    with pytest.raises(urllib.error.HTTPError):
        get(f"{url}/else")
    node.umount(mounted)
    with pytest.raises(OSError):
        get(f"{url}/metrics")


def test_others_must_not_reach_it(node: Node, tmp_path: Path) -> None:
    said = node.fails("mount", f"file://{tmp_path}", node.mountpoint(), "--metrics", "0.0.0.0:9400")
    assert "other machines" in said
    node.allowed_log.append("other machines would reach it")
    assert not os.path.ismount(node.mountpoint())


def test_a_client_that_follows_another_one_is_counted(node: Node, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    url = f"http://127.0.0.1:{free_port()}"
    mounted = node.mount(
        f"file://{tmp_path / 'source'}", "--metrics", url.removeprefix("http://")
    )  # fmt: skip
    line = f'cachefs_worker_takeovers_total{{mountpoint="{mounted}"}}'
    assert f"{line} 0.0" in get(f"{url}/metrics")
    record = StateHome(str(node.state)).find_mount(str(mounted))
    assert record is not None
    node.allowed_log.append("has ended unexpectedly")
    os.kill(record.pid, signal.SIGKILL)
    wait_until(lambda: f"{line} 1.0" in get(f"{url}/metrics"), "the successor is counted")
    assert [*mounted.iterdir()] == []
    node.umount(mounted)
