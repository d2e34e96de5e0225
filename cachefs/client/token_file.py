"""A token file that is reloaded: the tokens that a process accepts and the one that it presents.

A process checks the file every `LOOK_S` seconds, and reads it again if it was replaced or changed.
If a file cannot be used, the process logs it and keeps the previous tokens. Every later check reads
it again.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Final

from cachefs.client.credentials import read_tokens, real_path
from cachefs.core.access import HEADER, Access, Caller, header_of
from cachefs.core.errors import CacheFSError

log = logging.getLogger(__name__)

LOOK_S: Final = 2.0


class TokenFile:
    """The tokens of one file. Without a path every caller is accepted and no token is presented.
    `look` may run in another thread than the rest: it replaces each value in one assignment."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Reads the file. Raises as `read_tokens`."""
        self.path = path
        self._clock = clock
        self._seen = _signature(path)
        self._looked_at = clock()
        self._logged = ""  # the last error that was logged
        self._access = Access()
        self._headers: dict[str, str] = {}
        if path:
            self._read()

    @property
    def is_open(self) -> bool:
        """True if callers need no token."""
        return self._access.is_open

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of a request. The mapping is live: it always has the current token."""
        return self._headers

    def check(self, header: str | None) -> Caller:
        """Returns the caller that presents the value of `HEADER`. Raises AccessDenied."""
        return self._access.check(header)

    def look(self) -> None:
        """Reads the file again if it has changed since the last check. Blocks on its disk."""
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
            if line != self._logged:
                log.error("cannot reload the tokens, the previous ones stay valid: %s", line)
            self._logged = line
            return
        self._seen, self._logged = seen, ""
        log.info("%s: the tokens were reloaded", self.path)

    def check_if_due(self) -> None:
        """Checks the file if the last check is `LOOK_S` old, for callers without an event loop."""
        if self._clock() - self._looked_at >= LOOK_S:
            self.look()

    def _read(self) -> None:
        """Raises as `read_tokens`, and then changes nothing."""
        tokens = read_tokens(self.path)
        self._access = Access(tokens)
        self._headers[HEADER] = header_of(tokens[0].secret)


def _signature(path: str) -> tuple[int, ...] | None:
    """Returns the values by which a replaced or changed file differs; None for no file."""
    try:
        info = os.stat(real_path(path), follow_symlinks=False)
    except OSError:
        return None
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns
