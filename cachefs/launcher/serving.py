"""What every server process of ours does alike: hear the signals that ask it to end, and end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from typing import Final, NoReturn

log = logging.getLogger(__name__)

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


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


def quit_now(code: int) -> NoReturn:
    """Ends the process. All is closed and committed; a thread that is stuck in a request to an
    origin that hangs would keep the interpreter, and who waits for its end, waiting."""
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)
