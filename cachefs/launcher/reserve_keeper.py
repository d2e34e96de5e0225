"""How a server keeps the reserve of its state home while it runs: see `reserve.py`, which commands
and clients import, and which therefore imports no event loop."""

from __future__ import annotations

import asyncio
import os
from typing import Final

from cachefs.launcher.reserve import Reserve

PAUSE_S: Final = 600.0  # between looks of a server whether there is room for it


async def keep_reserve(home: str | os.PathLike[str]) -> None:
    """Makes the reserve when there is room for it. Runs until it is cancelled."""
    reserve = Reserve(home)
    while True:
        await asyncio.to_thread(reserve.make)
        await asyncio.sleep(PAUSE_S)
