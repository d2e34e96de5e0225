"""The ready descriptor of a started process: says once that it answers, or why it never will."""

from __future__ import annotations

import os

import msgspec

from cachefs.core.specs import Started


class ReadyPipe:
    """Takes over standard output: `say` writes one JSON line to it, closes it, and leaves /dev/null
    in its place, so that whoever started this process sees the end of the pipe."""

    def __init__(self) -> None:
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
            os.close(fd)
