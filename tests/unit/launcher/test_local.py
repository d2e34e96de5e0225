"""`cachefs up`: which port its master gets. No process is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachefs.core.errors import BadConfig
from cachefs.core.specs import MasterSpec, Started
from cachefs.launcher import local
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
