"""The ready descriptor of a started process, which reports once that it is ready or has failed."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence

import msgspec

from cachefs.core.errors import CacheFSError
from cachefs.core.messages import failure_of
from cachefs.core.specs import Started


class ReadyPipe:
    """Takes over standard output, which becomes /dev/null. `say` writes one JSON line to the pipe
    and closes it, so that the starter of this process reads its end.

    `held` are inherited descriptors of the locks under which this process was started. `say` closes
    them, so that the locks outlive a starter that is killed before that."""

    def __init__(self, held: Sequence[int] = ()) -> None:
        self._held = held
        for fd in held:
            os.set_inheritable(fd, False)
        self._fd = os.dup(1)
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(null, 1)
        os.close(null)

    def say(self, started: Started) -> None:
        """Writes the line. Later calls do nothing. Ignores a starter that has ended."""
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        try:
            os.write(fd, msgspec.json.encode(started) + b"\n")
        except BrokenPipeError:
            pass
        finally:
            for each in (fd, *self._held):
                os.close(each)

    def run(self, serve: Callable[[], None], log: logging.Logger) -> int:
        """Runs the process until it ends, and returns its exit code. Reports and logs a typed error
        of `serve`."""
        try:
            serve()
        except CacheFSError as err:
            log.error("%s", err.one_line())
            self.say(Started(os.getpid(), failure=failure_of(err)))
            return 1
        return 0
