"""The common parts of the server processes: stop signals, a bounded shutdown, the end of a pointer,
and the refresh of the token file and of the certificate."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Final, NoReturn

from cachefs.client.certificate_file import CertificateFile
from cachefs.client.token_file import LOOK_S, TokenFile
from cachefs.core.errors import CacheFSError
from cachefs.launcher.logs import end_log
from cachefs.launcher.state import remove_pointer

log = logging.getLogger(__name__)

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
TELL_S: Final = 15.0  # a shutdown that takes longer logs its waits
END_S: Final = 120.0  # for the whole shutdown


async def refresh_token_file(tokens: TokenFile) -> None:
    """Refreshes a token file until cancelled. Reads in a thread, so a hung disk blocks no work."""
    while tokens.path:
        await asyncio.sleep(LOOK_S)
        await asyncio.to_thread(tokens.look)


async def refresh_certificate(certificate: CertificateFile) -> None:
    """As `refresh_token_file`, for the certificate of a server."""
    while certificate.context is not None:
        await asyncio.sleep(LOOK_S)
        await asyncio.to_thread(certificate.look)


def stop_event() -> asyncio.Event:
    """Returns an event that a stop signal sets. Belongs to the running loop."""
    asked = asyncio.Event()

    def stop(number: signal.Signals) -> None:
        log.info("stopping: %s", number.name)
        asked.set()

    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop, number)
    return asked


def forget_pointer(directory: Path) -> None:
    """Removes this process's pointer from a directory. Logs a failure: a pointer that stays names
    no process that lives, and the shutdown must go on."""
    try:
        remove_pointer(directory, os.getpid())
    except CacheFSError as err:
        log.warning("the pointer to this server stays: %s", err.one_line())


def limit_shutdown() -> None:
    """Limits the shutdown, which has begun. Each of its waits has a separate limit. If one fails,
    logs the waits after `TELL_S` and ends the process after `END_S`."""
    asyncio.get_running_loop().call_later(TELL_S, _log_waits)
    last = threading.Timer(END_S, _end_late)
    last.daemon = True
    last.start()


def _log_waits() -> None:
    for task in asyncio.all_tasks():
        places = [f"{frame.f_code.co_qualname}:{frame.f_lineno}" for frame in task.get_stack()]
        log.warning("not ended yet: %s at %s", task.get_coro(), ", ".join(places))
    for name, stack in _stacks():
        for line in stack.splitlines():
            log.info("thread %s: %s", name, line)


def _stacks() -> list[tuple[str, str]]:
    """Returns (name, stack) of all threads."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return [
        (names.get(ident, "?"), "".join(traceback.format_stack(frame)))
        for ident, frame in sys._current_frames().items()
    ]


def _end_late() -> NoReturn:
    for name, stack in _stacks():
        log.error("the shutdown takes too long; thread %s", name)
        for line in stack.splitlines():
            log.error("thread %s: %s", name, line)
    quit_now(1)


def quit_now(code: int) -> NoReturn:
    """Ends the process at once. Everything is closed and committed; a normal exit would wait for a
    thread that is stuck in a request to a hung origin."""
    end_log()
    sys.stderr.flush()
    os._exit(code)
