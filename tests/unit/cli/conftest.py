"""A state home, and the command line run in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cachefs.cli import main
from cachefs.launcher.state import StateHome

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateHome:
    monkeypatch.setenv("CACHEFS_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CACHEFS_CONFIG", raising=False)
    return StateHome(tmp_path / "home")


@pytest.fixture
def run(home: StateHome, capsys: pytest.CaptureFixture[str]) -> Run:
    """`run(*args)` -> exit code, standard output, standard error."""

    def call(*args: str) -> tuple[int, str, str]:
        code = main.main(list(args))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call
