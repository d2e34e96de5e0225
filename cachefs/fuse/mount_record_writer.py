"""The mount record in the state home, which names the processes of the mount. The client that
serves the mount writes it.

A full state home ends no mount: a client that takes over a mount serves it even if it cannot write
the record, and writes the record later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from cachefs.core.errors import CacheFSError
from cachefs.launcher.reserve import Reserve
from cachefs.launcher.state import MountRecord, StateHome

log = logging.getLogger("cachefs.client")


class MountRecordWriter:
    """The writer of one mount record. `current` returns the record; `is_replaced` whether the
    record is that of another mount at the mount point by now. The methods block briefly."""

    def __init__(
        self,
        home: StateHome,
        current: Callable[[], MountRecord],
        is_replaced: Callable[[], bool] = lambda: False,
    ) -> None:
        self._home = home
        self._current = current
        self._is_replaced = is_replaced
        self._is_kept = False  # this client has a record
        self._is_due = False
        self._is_logged = False

    def write(self) -> None:
        """Writes the record. Raises CacheFSError, OSError."""
        self._is_kept = True
        self._home.write_mount(self._current())
        self._is_due = self._is_logged = False

    def keep(self) -> None:
        """Writes the record now, or in the first `settle` that can."""
        self._is_kept = self._is_due = True
        self.settle()

    def update(self) -> None:
        """Rewrites the record if this client has one."""
        if self._is_kept:
            self.keep()

    def settle(self) -> None:
        """Writes a record that is due, on a full disk with the reserve. Logs the first failure."""
        if not self._is_due:
            return
        try:
            if self._is_replaced():
                self._is_due = False
                return
            Reserve(self._home.path).give_up_if_short()
            self.write()
        except (CacheFSError, OSError) as err:
            cause = err.one_line() if isinstance(err, CacheFSError) else str(err)
            log.log(
                logging.DEBUG if self._is_logged else logging.WARNING,
                "the record of this mount cannot be written: %s; the mount still works, but "
                "`cachefs status` shows earlier processes of it until the record is written",
                cause,
            )
            self._is_logged = True

    def remove(self, *, is_repeated: bool = False) -> None:
        """Removes the record of an ended mount: a predecessor's if this client could not write one,
        never that of the next mount. Logs a failure, unless the removal `is_repeated` by the
        supervisor, which then logs it. The record that stays names no process that runs."""
        was_due, self._is_kept, self._is_due = self._is_due, False, False
        current = self._current()
        found = self._home.find_mount(current.mountpoint) if was_due else None
        is_left = found is not None and not found.client_process.lives()
        pid = found.pid if found is not None and is_left else current.pid
        try:
            self._home.remove_mount(current.mountpoint, pid)
        except CacheFSError as err:  # the end of a mount must not wait for this
            level = logging.DEBUG if is_repeated else logging.WARNING
            log.log(level, "the record of this mount stays: %s", err.one_line())
