"""The ready descriptor of a started process: says once that it answers, or why it never will."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from cachefs.core.specs import Started


class ReadyPipe:
    """Takes over standard output: `say` writes one JSON line to it, closes it, and leaves /dev/null
    in its place, so that whoever started this process sees the end of the pipe.

    `held` are inherited descriptors of locks under which this process was started. They are closed
    when it has said something, so that the locks outlive a starter that is killed meanwhile."""

    def __init__(self, held: Sequence[int] = ()) -> None:
        self._held = held
        for fd in held:
            os.set_inheritable(fd, False)
        self._fd = os.dup(1)
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(null, 1)
        os.close(null)

    def say(self, started: Started) -> None:
        """The first call counts; later ones do nothing. A starter that has gone is no error."""
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
