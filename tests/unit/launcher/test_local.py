"""`cachefs up`: which port its master gets. No process is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachefs.core.errors import BadConfig
from cachefs.core.specs import MasterSpec, Started
from cachefs.launcher import local
from cachefs.launcher.process_watch import ProcessId
from cachefs.launcher.state import StateHome


@pytest.fixture
def listened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses at which a master was to listen; only any free port is granted."""
    asked: list[str] = []

    def start(spec: MasterSpec, log: Path) -> Started:
        asked.append(spec.listen)
        if not spec.listen.endswith(":0"):
            raise BadConfig("cannot listen")
        return Started(7, url="http://127.0.0.1:5")

    monkeypatch.setattr(local, "start_master", start)
    return asked


def master_of(tmp_path: Path) -> local.LocalProcess:
    up = local.LocalClusterStarter(StateHome(str(tmp_path)), "", no_token=True)
    return up._start_master(local.LocalProcess("master"), [])


def test_a_port_that_another_process_takes_meanwhile_is_replaced(
    tmp_path: Path, listened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    free = iter([19998, 0])
    monkeypatch.setattr(local, "_free_port", lambda url: next(free))
    assert master_of(tmp_path).url == "http://127.0.0.1:5"
    assert listened == ["127.0.0.1:19998", "127.0.0.1:0"]


def test_another_failure_is_not_hidden_by_another_port(
    tmp_path: Path, listened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_free_port", lambda url: 19998)
    with pytest.raises(BadConfig):
        master_of(tmp_path)
    assert listened == ["127.0.0.1:19998"]


def test_the_cluster_of_a_command_is_one_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = {1, 2, 3}
    monkeypatch.setattr(ProcessId, "lives", lambda process: process.pid in running)
    home = StateHome(str(tmp_path))
    first, second, third = (str(tmp_path / name) for name in ("first", "second", "third"))
    for pid, directory in enumerate((first, second, third), 1):
        up = local.LocalClusterStarter(home, directory)
        up._cache_bytes = 0
        up._record([local.LocalProcess("master", f"http://127.0.0.1:{pid}", pid)])

    def named() -> str:
        found = local.read(home)
        assert found is not None
        return found.directory

    assert named() == third
    running.discard(3)
    assert named() == second, "the last one ended by `down --dir`"
    running.clear()
    assert named() == third, "`up` starts it again"
    found = local.read(home, first)
    assert found is not None
    assert found.directory == first
