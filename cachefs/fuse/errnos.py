"""The edge to the kernel: translates the exceptions of handlers to errnos.

Errors that become EIO are logged with their cause; another errno is specific enough. A lack of
descriptors fails thousands of requests a second: it is logged once a minute.
"""

from __future__ import annotations

import errno
import logging
import math
import time
from typing import Final

from cachefs.core.errors import CacheFSError, lacks_descriptors

log = logging.getLogger(__name__)

LACK_LOG_S: Final = 60.0


class Errnos:
    """Translates the exceptions of one mount."""

    def __init__(self) -> None:
        self._bugs: set[tuple[str, str, int]] = set()
        self._lack_logged_at_s = -math.inf

    def of(self, request: str, err: Exception) -> int:
        """Returns the errno (> 0) for an exception of a request, and logs the exception. EMFILE
        becomes ENFILE: the limit of this process is none of the caller's."""
        number = self._logged(request, err)
        return errno.ENFILE if number == errno.EMFILE else number

    def _logged(self, request: str, err: Exception) -> int:
        if isinstance(err, CacheFSError):
            level = logging.WARNING if err.errno == errno.EIO else logging.DEBUG
            log.log(level, "%s: %s", request, err.one_line())
            return err.errno
        if isinstance(err, OSError):
            log.log(self._level_of(err), "%s: %s", request, err)
            return err.errno or errno.EIO
        self._note_bug(request, err)
        return errno.EIO

    def _level_of(self, err: OSError) -> int:
        now = time.monotonic()
        if not lacks_descriptors(err):
            return logging.ERROR
        if now - self._lack_logged_at_s < LACK_LOG_S:
            return logging.DEBUG
        self._lack_logged_at_s = now
        return logging.ERROR

    def _note_bug(self, request: str, err: Exception) -> None:
        """Logs a traceback the first time, then one line."""
        trace = err.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        key = (type(err).__name__, request, trace.tb_lineno if trace is not None else 0)
        if key in self._bugs:
            log.error("%s: %s again: %s", request, key[0], err)
        else:
            self._bugs.add(key)
            log.error("%s: unexpected %s", request, key[0], exc_info=err)
