"""Translates errors into one line on standard error and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Final

import click

from cachefs.core.errors import CacheFSError
from cachefs.core.printable import printable

FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141


def run(program: str, body: Callable[[], int | None], *, debug: bool) -> int:
    """Calls `body` and returns its exit code, or the code of the error that it raised.

    With `debug` the traceback of an expected failure is printed too.
    """
    try:
        code = body() or 0
        sys.stdout.flush()
        return code
    except click.exceptions.Exit as err:
        return err.exit_code
    except click.exceptions.NoArgsIsHelpError as err:
        print(err.format_message(), file=sys.stderr)
        return USAGE
    except click.UsageError as err:
        return _say(program, _usage_line(err), USAGE, debug)
    except click.ClickException as err:
        return _say(program, err.format_message(), FAILED, debug)
    except CacheFSError as err:
        return _say(program, err.one_line(), FAILED, debug)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the flush at exit must not fail again
        return BROKEN_PIPE
    except OSError as err:
        where = f"{err.filename}: " if err.filename else ""
        return _say(program, f"{where}{err.strerror or err}", FAILED, debug)
    except (KeyboardInterrupt, click.Abort):
        return _say(program, "interrupted", INTERRUPTED, debug=False)


def _usage_line(err: click.UsageError) -> str:
    """Returns the cause, and the command that prints help."""
    cause = err.format_message().strip().replace("\n", " ").rstrip(".")
    command = err.ctx.command_path if err.ctx is not None else "cachefs"
    return f"{cause}; try `{command} --help`"


def _say(program: str, line: str, code: int, debug: bool) -> int:
    if debug:
        import traceback

        traceback.print_exc()
    one_line = " ".join(line.splitlines())
    print(f"{program}: {printable(one_line)}", file=sys.stderr)
    return code
