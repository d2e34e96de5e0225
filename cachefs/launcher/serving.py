"""What every server process of ours does alike: hear the signals that ask it to end, end, and look
at its token file."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import traceback
from typing import Final, NoReturn

from cachefs.client.token_file import LOOK_S, TokenFile

log = logging.getLogger(__name__)

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
TELL_S: Final = 15.0  # an end that takes longer is explained in the log
END_S: Final = 120.0  # for all that an end waits for


async def keep_fresh(tokens: TokenFile) -> None:
    """Looks at a token file until it is cancelled. A disk that hangs holds up no other work."""
    while tokens.path:
        await asyncio.sleep(LOOK_S)
        await asyncio.to_thread(tokens.look)


def stop_event() -> asyncio.Event:
    """Set by the first signal that asks this process to end. Belongs to the running loop."""
    asked = asyncio.Event()

    def stop(number: signal.Signals) -> None:
        log.info("stopping: %s", number.name)
        asked.set()

    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop, number)
    return asked


def limit_end() -> None:
    """What this process still does is to end. Each wait of that has a limit of its own; where one
    is broken, the log says what is waited for, and then the process ends all the same."""
    asyncio.get_running_loop().call_later(TELL_S, _tell)
    last = threading.Timer(END_S, _give_up)
    last.daemon = True
    last.start()


def _tell() -> None:
    for task in asyncio.all_tasks():
        places = [f"{frame.f_code.co_qualname}:{frame.f_lineno}" for frame in task.get_stack()]
        log.warning("not ended yet: %s at %s", task.get_coro(), ", ".join(places))
    for name, stack in _stacks():
        log.info("thread %s:\n%s", name, stack)


def _stacks() -> list[tuple[str, str]]:
    """Of all threads."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return [
        (names.get(ident, "?"), "".join(traceback.format_stack(frame)))
        for ident, frame in sys._current_frames().items()
    ]


def _give_up() -> NoReturn:
    for name, stack in _stacks():
        log.error("the end takes too long; thread %s:\n%s", name, stack)
    quit_now(1)


def quit_now(code: int) -> NoReturn:
    """Ends the process. All is closed and committed; a thread that is stuck in a request to an
    origin that hangs would keep the interpreter, and who waits for its end, waiting."""
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)
