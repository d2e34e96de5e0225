"""What a failed command prints on standard error: a line for people, a document for programs."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import click
import pytest

from cachefs.cli import error_output
from cachefs.cli.main import main
from cachefs.core.errors import NotFound

COMMAND_S = 60.0


CLOSED: Final = {0: "<&-", 1: ">&-", 2: "2>&-"}
STREAMS: Final = """
import os, subprocess, sys
from cachefs.cli import error_output
def body():
    print("out"); print("err", file=sys.stderr)
    child = subprocess.run(["readlink", *[f"/proc/self/fd/{fd}" for fd in range(3)]], stdout=-1)
    assert child.returncode == 0, "a child lacks a standard stream"
    return 7
sys.exit(error_output.run("cachefs", body, debug=False))
"""


def failed_with(err: BaseException, capsys: pytest.CaptureFixture[str], as_json: bool) -> str:
    def body() -> int:
        raise err

    error_output.run("cachefs", body, debug=False, as_json=as_json)
    shown = capsys.readouterr()
    assert shown.out == ""
    return shown.err


def document(err: BaseException, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    line = failed_with(err, capsys, as_json=True)
    assert line.count("\n") == 1
    found = json.loads(line)
    assert isinstance(found, dict)
    return found


def test_programs_get_the_code_and_each_part(capsys: pytest.CaptureFixture[str]) -> None:
    err = NotFound("no such key", remedy="look again", path="/data/\x1b[2J", request_id="7")
    assert document(err, capsys) == {
        "code": "not-found",
        "cause": "no such key",
        "remedy": "look again",
        "path": "/data/\\x1b[2J",
        "request_id": "7",
    }
    assert failed_with(err, capsys, as_json=False) == (
        "cachefs: /data/\\x1b[2J: no such key (request id 7); look again\n"
    )


@pytest.mark.parametrize(
    ("err", "code", "cause", "path"),
    [
        (FileNotFoundError(2, "No such file", "/etc/x"), "system", "No such file", "/etc/x"),
        (OSError("a cause without a number"), "system", "a cause without a number", ""),
        (KeyboardInterrupt(), "interrupted", "interrupted", ""),
        (click.UsageError("no such option\n--x."), "usage", "no such option --x", ""),
    ],
)
def test_each_kind_of_failure_has_a_code(
    err: BaseException, code: str, cause: str, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(err, capsys)
    assert (found["code"], found["cause"], found["path"]) == (code, cause, path)


def test_a_wrong_command_line_is_a_document_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stat", "--json", "--no-such-flag"]) == error_output.USAGE
    found = json.loads(capsys.readouterr().err)
    assert found["code"] == "usage"
    assert found["remedy"] == "try `cachefs stat --help`"


@pytest.mark.parametrize("words", [["version"], ["config", "--json"], ["ls", "--help"]])
def test_an_output_that_nobody_reads_is_no_failure_of_the_command(words: list[str]) -> None:
    """1 is the exit code of `health` for warnings, and of `fsck` for damage."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "cachefs.cli.main", *words],
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=COMMAND_S,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (error_output.BROKEN_PIPE, b"")


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
def test_a_closed_stream_is_the_null_device(closed: tuple[int, ...], tmp_path: Path) -> None:
    """`cachefs ls >&-` does its work, and neither stream gets what is meant for the other."""
    redirects = " ".join(
        CLOSED[fd] if fd in closed else f"{fd}>{tmp_path / str(fd)}" for fd in range(3)
    )
    program = shlex.join([sys.executable, "-c", STREAMS])
    done = subprocess.run(f"{program} {redirects}", shell=True, timeout=COMMAND_S)
    said = {fd: (tmp_path / str(fd)).read_text() for fd in (1, 2) if fd not in closed}
    assert (done.returncode, said) == (
        7, {fd: text for fd, text in ((1, "out\n"), (2, "err\n")) if fd not in closed},
    )  # fmt: skip
