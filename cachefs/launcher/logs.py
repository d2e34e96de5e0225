"""The log of a process: a rotated file (0600), or standard error. Set up once, at its start. A
thread writes it (`log_writer.py`)."""

from __future__ import annotations

import atexit
import io
import json
import logging
import logging.handlers
import os
import time
from typing import Any

from cachefs.core.printable import printable
from cachefs.launcher.log_writer import LogWriter

LOG_BYTES = 10 << 20
LOG_FILES = 3
FORMAT = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"


class LineFormatter(logging.Formatter):
    """Formats a record as one line, and a line for each of its traceback. Names and errors of an
    origin may have control characters and line ends."""

    def __init__(self) -> None:
        super().__init__(FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return "\n".join(map(printable, super().formatException(ei).splitlines()))


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON: ts, level, logger, message, and fields, a dictionary
    that the caller gives as `extra={"fields": …}`."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.gmtime(record.created)
        line = {
            "ts": f"{time.strftime('%Y-%m-%dT%H:%M:%S', moment)}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = dict(getattr(record, "fields", {}))
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(line | {"fields": fields}, default=str)


def log_to(path: str, level: str, *, to_stderr: bool, as_json: bool = False) -> None:
    """Sends every log line of this process to `path` (rotated at 10 MiB, 3 kept) or to stderr."""
    sink: logging.Handler
    if to_stderr or not path:
        sink = logging.StreamHandler(_standard_error())
    else:
        sink = logging.handlers.RotatingFileHandler(
            path, maxBytes=LOG_BYTES, backupCount=LOG_FILES - 1, delay=False
        )
        os.chmod(path, 0o600)
    handler = LogWriter(sink)
    atexit.unregister(logging.shutdown)  # it would wait for a sink that is stuck
    atexit.register(end_log)
    handler.setFormatter(JsonFormatter() if as_json else LineFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Malformed requests would be logged in part, and may contain a token.
    logging.getLogger("aiohttp.server").addFilter(_is_ours)
    for noisy in ("botocore", "boto3", "urllib3"):  # at DEBUG they print credentials
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _standard_error() -> io.TextIOWrapper:
    """Returns standard error without a buffer. `sys.stderr` has one, whose lock a stuck thread
    would hold at the end of the process: the interpreter waits for it, or aborts."""
    raw = io.FileIO(2, "w", closefd=False)
    return io.TextIOWrapper(raw, "utf-8", "backslashreplace", write_through=True)


def end_log() -> None:
    """Writes the lines that wait, at the end of the process. Waits some seconds at most."""
    for handler in logging.getLogger().handlers:
        handler.flush()
        handler.close()


def _is_ours(record: logging.LogRecord) -> bool:
    """Returns False for errors of the HTTP parser: malformed input of a caller."""
    err = record.exc_info[1] if record.exc_info else None
    return type(err).__module__ != "aiohttp.http_exceptions"
