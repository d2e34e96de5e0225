"""Probes of idle origins, and of the free space on the store's disk.

Each mounted source is checked `EVERY_S` after the last request to its origin, by a probe or by a
caller. The result is recorded in the mount's `OriginHealth`. A change between up and down is thus
detected within `EVERY_S` + `LIMIT_S` and a pause between two rounds. An error that means "down"
counts like a caller's error. A refusal, or a check slower than `LIMIT_S`, only shows in the status.
A slow check continues and blocks further checks of its source. Each check has its own thread, up
to `MOST_AT_ONCE`.
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
JITTER: Final = 0.2  # up to this share less, so that masters of one origin do not probe in step
ROUNDS: Final = 8  # per `EVERY_S`: each starts the checks that are due
LIMIT_S: Final = 2.5
MOST_AT_ONCE: Final = 16


class Probes:
    """The probes of one master. `status()` is for the master's status document."""

    def __init__(
        self,
        tree: Tree,
        clock: Callable[[], float],
        store_dir: Path | None,
        failure: Callable[[], str] = str,
    ) -> None:
        """`failure` returns why the store's last commit failed, or ""."""
        self._tree = tree
        self._clock = clock
        self._store_dir = store_dir
        self._failure = failure
        self._free_bytes = -1
        self._threads = ThreadPoolExecutor(MOST_AT_ONCE, "probe")
        self._checks: dict[int, asyncio.Task[None]] = {}  # by the root's ino
        self._due: dict[int, float] = {}  # by the root's ino, in loop time
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts the rounds. Idempotent."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        """Ends the rounds. Running checks finish in their threads; their results are ignored."""
        tasks = [*self._checks.values(), *([self._task] if self._task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def status(self) -> dict[str, Any]:
        """Returns the store's directory, its free bytes (-1: unknown) and why its last commit
        failed."""
        path = str(self._store_dir or "")
        return {"path": path, "free_bytes": self._free_bytes, "cause": self._failure()}

    async def _run(self) -> None:
        while True:
            for _ in range(ROUNDS):
                await asyncio.sleep(EVERY_S / ROUNDS)
                self.round(asyncio.get_running_loop().time())
            if self._store_dir is not None:
                self._free_bytes = await asyncio.to_thread(_free_bytes, self._store_dir)

    def round(self, now: float) -> None:
        """Starts a check of every source that is due. `now`: loop time, s."""
        mounts = [mount for mount in self._tree.mounts() if not mount.is_void]
        self._due = {mount.root: self._due.get(mount.root, now) for mount in mounts}
        for mount in mounts:
            if mount.root in self._checks or mount.health.was_asked:
                mount.health.was_asked = False
                self._due[mount.root] = now + EVERY_S * random.uniform(1 - JITTER, 1)
            elif now >= self._due[mount.root]:
                task = asyncio.ensure_future(self._check(mount))
                self._checks[mount.root] = task
                task.add_done_callback(functools.partial(self._ended, mount.root))

    def _ended(self, root: int, check: asyncio.Task[None]) -> None:
        self._checks.pop(root, None)

    async def _check(self, mount: Mount) -> None:
        begun = asyncio.Event()
        check = asyncio.ensure_future(self._in_thread(_checked, mount, _setter(begun)))
        try:
            await begun.wait()
            await asyncio.wait([check], timeout=LIMIT_S)
            if not check.done() and not mount.health.down:  # keep the known cause
                silence = DeadlineExceeded(f"no answer within {LIMIT_S:g} s")
                mount.health.troubled(silence, self._clock())
            await check
        except CacheFSError as err:
            self._note(mount, err)
        else:
            mount.health.succeeded()
        finally:
            check.cancel()
            mount.health.was_asked = False

    def _note(self, mount: Mount, err: CacheFSError) -> None:
        note = mount.health.failed if is_down(err) else mount.health.troubled
        note(err, self._clock())

    async def _in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)


def _setter(event: asyncio.Event) -> Callable[[], object]:
    """Returns a function that sets an event of this loop from any thread."""
    return functools.partial(asyncio.get_running_loop().call_soon_threadsafe, event.set)


def _checked(mount: Mount, begin: Callable[[], object]) -> None:
    """Checks an origin, in a thread. Calls `begin` first, when the thread starts on it."""
    begin()
    mount.connector.check()


def _free_bytes(directory: Path) -> int:
    try:
        found = os.statvfs(directory)
    except OSError:
        return -1
    return found.f_bavail * found.f_frsize
