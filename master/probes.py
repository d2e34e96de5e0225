"""Asks the origins that nobody else asks whether they answer, and looks at the store's disk.

Each mounted source is asked once in `EVERY_S`, unless a caller asked its origin since the last
round. What comes of it goes into the mount's `OriginHealth`, as the answers to callers do: so an
origin that went away is known within `EVERY_S` + `LIMIT_S`, and one that is back as well. A check
that takes longer than `LIMIT_S` says that the origin is down; it goes on, and no other one of that
source begins before its end. One thread for each check, at most `MOST_AT_ONCE`.
"""

from __future__ import annotations

import asyncio
import functools
import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from cachefs.core.errors import CacheFSError, DeadlineExceeded
from master.state.health import is_down
from master.tree import Mount, Tree

EVERY_S: Final = 2.0
JITTER: Final = 0.2  # of the pause: many masters of one store do not ask at the same time
LIMIT_S: Final = 2.5
MOST_AT_ONCE: Final = 8


class Probes:
    """Of one master. `status()` is for the master's status document."""

    def __init__(self, tree: Tree, clock: Callable[[], float], store_dir: Path | None) -> None:
        self._tree = tree
        self._clock = clock
        self._store_dir = store_dir
        self._free_bytes = -1
        self._threads = ThreadPoolExecutor(MOST_AT_ONCE, "probe")
        self._checks: dict[int, asyncio.Task[None]] = {}  # by the root's ino
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins the rounds. Idempotent."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        """Ends the rounds; checks under way end by themselves, and nothing is done with them."""
        tasks = [*self._checks.values(), *([self._task] if self._task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def status(self) -> dict[str, Any]:
        """Returns the store's directory and how much its disk has free; -1: not known yet."""
        return {"path": str(self._store_dir or ""), "free_bytes": self._free_bytes}

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S * random.uniform(1 - JITTER, 1 + JITTER))
            self.round()
            if self._store_dir is not None:
                self._free_bytes = await self._in_thread(_free_bytes, self._store_dir)

    def round(self) -> None:
        """Begins a check of every source that was not asked since the last round."""
        for mount in self._tree.mounts():
            if mount.is_void or mount.root in self._checks:
                continue
            if mount.health.was_asked:
                mount.health.was_asked = False
                continue
            task = asyncio.ensure_future(self._check(mount))
            self._checks[mount.root] = task
            task.add_done_callback(functools.partial(self._ended, mount.root))

    def _ended(self, root: int, check: asyncio.Task[None]) -> None:
        self._checks.pop(root, None)

    async def _check(self, mount: Mount) -> None:
        check = asyncio.ensure_future(self._in_thread(mount.connector.check))
        try:
            await asyncio.wait([check], timeout=LIMIT_S)
            if not check.done() and not mount.health.down:  # a known cause says more
                self._failed(mount, DeadlineExceeded(f"no answer within {LIMIT_S:g} s"))
            await check
        except CacheFSError as err:
            if is_down(err):
                return self._failed(mount, err)
        finally:
            check.cancel()
        mount.health.succeeded()
        mount.health.was_asked = False

    def _failed(self, mount: Mount, err: CacheFSError) -> None:
        mount.health.failed(err, self._clock())
        mount.health.was_asked = False

    async def _in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)


def _free_bytes(directory: Path) -> int:
    try:
        found = os.statvfs(directory)
    except OSError:
        return -1
    return found.f_bavail * found.f_frsize
