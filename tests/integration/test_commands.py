"""Commands in forks, as the tests run most of them, do what the program itself does."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.services.commands import CACHEFS, run_cachefs

LIMIT_S = 60.0
COMMANDS = {
    "a result": ["config", "--source"],
    "a failure": ["umount", "/nowhere"],
    "a usage error": ["mount", "--no-such-flag"],
}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "CACHEFS_CACHE_SIZE": "77MiB"}


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_a_fork_says_what_the_program_says(
    arguments: list[str], environment: dict[str, str]
) -> None:
    program = subprocess.run(
        [CACHEFS, *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    forked = run_cachefs(arguments, environment, LIMIT_S)
    assert program.stdout or program.stderr
    assert (forked.stdout, forked.stderr) == (program.stdout, program.stderr)
    assert forked.returncode == program.returncode


def test_forks_side_by_side_have_their_own_environments(environment: dict[str, str]) -> None:
    sizes = [f"{n} MiB" for n in range(70, 78)]

    def config(size: str) -> str:
        given = {**environment, "CACHEFS_CACHE_SIZE": size.replace(" ", "")}
        return run_cachefs(["config"], given, LIMIT_S).stdout

    with ThreadPoolExecutor(len(sizes)) as pool:
        for size, said in zip(sizes, pool.map(config, sizes), strict=True):
            assert size in said


def test_a_command_that_takes_too_long_is_an_error_and_the_next_one_runs(
    environment: dict[str, str],
) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_cachefs(["version"], environment, 0.0)
    assert run_cachefs(["version"], environment, LIMIT_S).returncode == 0
