"""What `import cachefs` and `cachefs --help` may cost: they run in trainers and in every shell."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SERVER_LIBRARIES = {"aiohttp", "boto3", "botocore", "lmdb", "lxml", "obstore", "pyarrow", "pycurl"}
SERVER_CODE = {"connectors", "master", "worker"}
HELP_CPU_LIMIT_S = 0.25


def modules_after(statement: str) -> set[str]:
    """The top-level modules of a fresh interpreter after one statement."""
    program = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, text=True, stdout=subprocess.PIPE
    )
    return {name.partition(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize(
    "statement",
    [
        "import cachefs",
        "import cachefs; cachefs.open, cachefs.tree, cachefs.close",
        "import cachefs.cli.main",
    ],
)
def test_a_trainer_gets_no_server_code(statement: str) -> None:
    assert not modules_after(statement) & (SERVER_LIBRARIES | SERVER_CODE)


def test_a_program_gets_the_library_at_its_first_use() -> None:
    """No event loop, no command line, no module of an extra."""
    ours = "[*{name for name in sys.modules if name.startswith('cachefs')}]"
    assert modules_after(f"import cachefs; assert {ours} == ['cachefs']") & {"cachefs"}
    loaded = modules_after("import cachefs; cachefs.open, cachefs.tree, cachefs.close")
    assert "msgspec" in loaded
    assert not loaded & {"asyncio", "click", "fsspec", "rich", "ssl", "trio"}


@pytest.mark.parametrize(("extra", "lacks"), [("fsspec", "fsspec"), ("arrow", "pyarrow")])
def test_a_missing_extra_is_named_by_the_import(extra: str, lacks: str) -> None:
    program = f"import sys; sys.modules[{lacks!r}] = None; import cachefs.{extra}"
    done = subprocess.run([sys.executable, "-c", program], text=True, stderr=subprocess.PIPE)
    assert done.returncode != 0
    assert f"cachefs.{extra} needs it: pip install 'cachefs-io[{extra}]'" in done.stderr


def test_the_probe_sees_what_is_imported() -> None:
    assert "lmdb" in modules_after("import lmdb")


def test_a_supervisor_gets_no_event_loop() -> None:
    """Each mount has one, for as long as it is mounted: it stays small and starts fast."""
    assert not modules_after("import cachefs.fuse.supervisor.__main__") & {"asyncio", "trio"}


def cpu_s(command: list[str]) -> float:
    """CPU seconds, user and system, of one command that must succeed."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        pid = os.posix_spawn(
            command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, null, 1)]
        )
        _, status, usage = os.wait4(pid, 0)
    finally:
        os.close(null)
    assert os.waitstatus_to_exitcode(status) == 0
    return usage.ru_utime + usage.ru_stime


def test_help_is_quick() -> None:
    """The best of five: what the command costs, not what else the machine does. It takes 0.1 s on
    busy cores."""
    command = [os.path.join(os.path.dirname(sys.executable), "cachefs"), "--help"]
    assert min(cpu_s(command) for _ in range(5)) < HELP_CPU_LIMIT_S
