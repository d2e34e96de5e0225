"""Real torch, in the environment of its own that `scripts/torch-venv` makes, once per user."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from tests.integration.conftest import Node
from tests.services.environment import environment_of
from tests.services.s3_server import S3Server

ROOT = Path(__file__).parents[2]
INSTALL_LIMIT_S = 1800
FILES = 100


class TorchHost:
    """A process with torch; see `host.py`."""

    def __init__(self, python: str, home: Path, log: BinaryIO) -> None:
        self.python = python
        self.environment = {**environment_of(home), "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [python, "-m", "tests.torch.host"],
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        self._log = Path(log.name)

    def run(self, *calls: tuple[str, dict[str, Any]]) -> list[int]:
        """Returns the exit codes of functions that ran side by side."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(calls) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, self.log()
        found: list[int] = json.loads(answer)
        return found

    def ok(self, function: str, **arguments: Any) -> None:
        """Runs a function that must succeed."""
        before = len(self.log())
        assert self.run((function, arguments)) == [0], self.log()[before:]

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def close(self) -> None:
        self._process.communicate(timeout=20)


@pytest.fixture(scope="session")
def torch_python() -> str:
    """The interpreter that has torch."""
    done = subprocess.run(
        [ROOT / "scripts/torch-venv"], stdout=subprocess.PIPE, text=True, timeout=INSTALL_LIMIT_S
    )
    assert done.returncode == 0
    return done.stdout.strip()


@pytest.fixture(scope="session")
def torch_host(torch_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchHost]:
    home = tmp_path_factory.mktemp("torch")
    with open(home / "log", "wb") as log:
        host = TorchHost(torch_python, home, log)
        try:
            yield host
        finally:
            host.close()


@pytest.fixture
def node(tmp_path: Path, s3: S3Server) -> Iterator[Node]:
    user = Node(tmp_path, s3.credentials())
    user.allowed_log.append(r"connection|took over|killed|died|lost|ended unexpectedly")
    try:
        yield user
    finally:
        left = user.clean_up()
    assert not left, "\n".join(["processes left behind:", *left])
    assert user.unexpected() == []


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """A data set: each file repeats its number."""
    root = tmp_path / "numbers"
    for number in range(FILES):
        path = root / f"class{number % 3}" / f"{number:03d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d\n" % number * (50 + 97 * number))
    return root


@pytest.fixture
def mounted(node: Node, numbers: Path) -> Path:
    return node.mount(f"file://{numbers}", "--sync-interval", "1h")


def home_of(node: Node) -> str:
    return os.fspath(node.state)
