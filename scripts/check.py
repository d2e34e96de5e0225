"""The command behind `make test`, `make check` and `make coverage`: every check, then the tests.

All checks run even if one fails; a failed one shows its output. The tests run last, so that
pytest's closing line ends the output.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
PYTHON = sys.executable

LINT: dict[str, list[str]] = {
    "format": [str(BIN / "ruff"), "format", "--check", "--quiet", "."],
    "lint": [str(BIN / "ruff"), "check", "--quiet", "."],
    "types": [str(BIN / "mypy")],
    "names": [str(BIN / "mypy"), "--config-file", "tests/mypy.ini"],
    "imports": [str(BIN / "lint-imports"), "--no-logo"],
    "docs": [PYTHON, "scripts/check_docs.py"],
}
PYTEST = ["-m", "pytest"]
# Compiles the tests once, beside the type checks, and not in every process of a fresh clone.
COLLECT = {"collect": [PYTHON, *PYTEST, "--collect-only", "-qq"]}
# Some tests mostly wait: one process more than the CPUs keeps the CPUs busy.
SIDE_BY_SIDE = ["-n", str((os.cpu_count() or 1) + 1), "--no-loadscope-reorder"]
# Measuring coverage doubles the CPU time of the test processes, so it is a separate run.
COVERAGE = ["--cov", "--cov-report="]
TESTS: dict[str, list[list[str]]] = {
    "lint": [],
    "fast": [[PYTHON, *PYTEST, *SIDE_BY_SIDE, "tests/unit"]],
    "all": [[PYTHON, *PYTEST, *SIDE_BY_SIDE, "--durations=10"]],
    "coverage": [
        [PYTHON, *PYTEST, *SIDE_BY_SIDE, *COVERAGE],
        [PYTHON, "-m", "coverage", "report", "--format=total"],
    ],
}
# `make check` runs a quarter of the random examples and histories, unless the environment sets the
# share.
EXAMPLES: dict[str, dict[str, str]] = {"fast": {"CACHEFS_TEST_EXAMPLES_PERCENT": "25"}}
# Without bytecode files each process would compile every test in each run.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def passes(name: str, command: list[str]) -> bool:
    """Runs one check, prints one line (and the output of a failure), returns whether it passed."""
    started = time.monotonic()
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    ok = done.returncode == 0
    line = f"{name:8} {'ok' if ok else 'FAILED'}  {time.monotonic() - started:.1f} s\n"
    print(line if ok else f"{line}{done.stdout}", end="" if ok else "\n", flush=True)
    return ok


def run_tests(commands: list[list[str]], environment: dict[str, str]) -> bool:
    """Runs the tests; coverage (per cent, with branches) adds one line."""
    ok = True
    for command in commands:
        if command[-1].startswith("--format"):
            print("coverage of statements and branches in the tests' own processes, %: ", end="")
            sys.stdout.flush()
        ok &= _returncode(command, environment) == 0
    return ok


def _returncode(command: list[str], environment: dict[str, str]) -> int:
    done = subprocess.run(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL)
    return done.returncode


def main(arguments: list[str]) -> int:
    """Runs `check.py lint|fast|all|coverage`; exit status 1 if anything failed."""
    profile = arguments[0] if arguments else "all"
    if profile not in TESTS:
        print(f"usage: check.py {'|'.join(TESTS)}", file=sys.stderr)
        return 2
    checks = LINT if profile in ("lint", "fast") else {**LINT, **COLLECT}
    with ThreadPoolExecutor(len(checks)) as side_by_side:
        held = [*side_by_side.map(passes, checks, checks.values())]
    failed = [name for name, ok in zip(checks, held, strict=True) if not ok]
    tests_ok = run_tests(TESTS[profile], {**EXAMPLES.get(profile, {}), **ENVIRONMENT})
    if failed:
        print(f"FAILED checks: {', '.join(failed)}", flush=True)
    return 0 if tests_ok and not failed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
