"""A token file as it is now: what a process accepts from others and what it presents to them.

A process looks at the file every `LOOK_S` seconds at most, and reads it again when it is another
file or was changed. A file that cannot be used is a line in the log, and the tokens that were read
before stay in force; each look reads it again.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Final

from cachefs.client.credentials import read_tokens
from cachefs.core.access import HEADER, Access, Caller, header_of
from cachefs.core.errors import CacheFSError

log = logging.getLogger(__name__)

LOOK_S: Final = 2.0


class TokenFile:
    """The tokens of one file; without a path every caller is accepted and nothing is presented.

    `look` may run in another thread than the rest: what it replaces is replaced at once.
    """

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Reads the file. Raises as `read_tokens`."""
        self.path = path
        self._clock = clock
        self._seen = _signature(path)
        self._looked_at = clock()
        self._said = ""  # the last complaint about the file as it is
        self._access = Access()
        self._headers: dict[str, str] = {}
        if path:
            self._read()

    @property
    def is_open(self) -> bool:
        """Is nobody asked for a token?"""
        return self._access.is_open

    @property
    def headers(self) -> Mapping[str, str]:
        """What a request presents. The mapping is live: it has the token of the file as it is."""
        return self._headers

    def check(self, header: str | None) -> Caller:
        """Returns who asks, by the value of `HEADER`. Raises AccessDenied."""
        return self._access.check(header)

    def look(self) -> None:
        """Reads the file again if it has changed since the last look. Blocks on its disk."""
        if not self.path:
            return
        self._looked_at = self._clock()
        seen, before = _signature(self.path), self._seen
        if seen == before:
            return
        try:
            self._read()
        except CacheFSError as err:
            line = err.one_line()
            if line != self._said:
                log.error("the tokens stay as they were: %s", line)
            self._said = line
            return
        self._seen, self._said = seen, ""
        log.info("%s: the tokens were read again", self.path)

    def look_now_and_then(self) -> None:
        """Looks, if the last look is `LOOK_S` seconds ago: for callers without an event loop."""
        if self._clock() - self._looked_at >= LOOK_S:
            self.look()

    def _read(self) -> None:
        """Raises as `read_tokens`; nothing has changed then."""
        tokens = read_tokens(self.path)
        self._access = Access(tokens)
        self._headers[HEADER] = header_of(tokens[0].secret)


def _signature(path: str) -> tuple[int, ...] | None:
    """Returns what differs between a file and another or changed one; None for no file."""
    try:
        info = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns
