"""Translates errors into one line on standard error and an exit code. With --json the line is a
JSON document, with the fields of the admin API's failures."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Final, NamedTuple

import click

from cachefs.cli import output
from cachefs.core.errors import CacheFSError
from cachefs.core.printable import printable

FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
FIELDS: Final = ("cause", "remedy", "path", "request_id")


class _Failure(NamedTuple):
    """What failed; `code` is for programs."""

    err: CacheFSError
    code: str
    exit_code: int


def run(program: str, body: Callable[[], int | None], *, debug: bool, as_json: bool = False) -> int:
    """Calls `body` and returns its exit code, or the code of the error that it raised.

    With `debug` the traceback of an expected failure is printed too.
    """
    _open_closed_streams()
    try:
        code = body() or 0
        sys.stdout.flush()
        return code
    except click.exceptions.Exit as err:
        return err.exit_code
    except click.exceptions.NoArgsIsHelpError as err:
        print(err.format_message(), file=sys.stderr)
        return USAGE
    except BrokenPipeError:
        output.discard()
        return BROKEN_PIPE
    except (CacheFSError, click.ClickException, OSError, KeyboardInterrupt, click.Abort) as err:
        failure = _failure(err)
        if debug and failure.exit_code != INTERRUPTED:
            import traceback

            traceback.print_exc()
        _print_failure(program, failure, as_json)
        return failure.exit_code


def _open_closed_streams() -> None:
    """Opens the null device for each standard stream that is closed (`>&-`). Else the first file or
    socket that the command opens would get its number, and output of a child would go there."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(fd, "w" if fd else "r", closefd=False))


def _failure(err: BaseException) -> _Failure:
    match err:
        case CacheFSError():
            return _Failure(err, err.code, FAILED)
        case click.UsageError():
            return _Failure(_usage_error(err), "usage", USAGE)
        case click.ClickException():
            return _Failure(CacheFSError(err.format_message()), "usage", FAILED)
        case OSError():
            named = CacheFSError(err.strerror or str(err), path=str(err.filename or ""))
            return _Failure(named, "system", FAILED)
        case _:
            return _Failure(CacheFSError("interrupted"), "interrupted", INTERRUPTED)


def _usage_error(err: click.UsageError) -> CacheFSError:
    """Returns the cause, and as its remedy the command that prints help."""
    cause = err.format_message().strip().replace("\n", " ").rstrip(".")
    command = err.ctx.command_path if err.ctx is not None else "cachefs"
    return CacheFSError(cause, remedy=f"try `{command} --help`")


def _print_failure(program: str, failure: _Failure, as_json: bool) -> None:
    err = failure.err
    line = f"{program}: {err.one_line()}"
    if as_json:
        fields = {name: printable(getattr(err, name)) for name in FIELDS}
        line = json.dumps({"code": failure.code, **fields})
    print(line, file=sys.stderr)
