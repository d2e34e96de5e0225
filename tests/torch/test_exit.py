"""Programs that end while loader processes read: soon, and without a word."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.integration.conftest import Node
from tests.torch.conftest import ROOT, TorchHost, home_of

LIMIT_S = 100.0
# The handler of SIGCHLD that torch installs may raise in multiprocessing's last function, which
# terminates the loader processes that are left.
OF_TORCH = "is killed by signal: Terminated"


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
def test_a_program_ends_in_an_iteration(
    how: str, torch_host: TorchHost, node: Node, mounted: Path
) -> None:
    """[S-library-exit]"""
    strict = [torch_host.python, "-W", "error::ResourceWarning"]
    done = subprocess.run(
        [*strict, "-m", "tests.torch.exits", how, str(mounted), home_of(node)],
        cwd=ROOT,
        env=torch_host.environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert (done.returncode, done.stdout) == (0, "ready\n")
    assert "ResourceWarning" not in done.stderr
    assert f"{ROOT}/cachefs" not in done.stderr
    assert not done.stderr or OF_TORCH in done.stderr
