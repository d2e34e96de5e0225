"""The upkeep of the state home's reserve in a running server. Separate from `reserve.py`, which
commands and clients import and which therefore imports no event loop."""

from __future__ import annotations

import asyncio
import os
from typing import Final

from cachefs.launcher.reserve import Reserve

PAUSE_S: Final = 600.0  # between two attempts to create the reserve


async def keep_reserve(home: str | os.PathLike[str]) -> None:
    """Creates the reserve when there is space for it, until cancelled."""
    reserve = Reserve(home)
    while True:
        await asyncio.to_thread(reserve.make)
        await asyncio.sleep(PAUSE_S)
