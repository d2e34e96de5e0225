"""Why an HTTP request of aiohttp got no answer, in the words of the system."""

from __future__ import annotations

import os
import ssl

import aiohttp

from cachefs.doors.owners import ForeignListener


def cause_of(err: aiohttp.ClientError | OSError) -> str:
    """Returns the cause without addresses, which the caller's message names."""
    if isinstance(err, aiohttp.ClientConnectorCertificateError):
        return _cause_of_system(err.certificate_error)
    if isinstance(err, aiohttp.ClientConnectorError):
        return _cause_of_system(err.os_error)
    if isinstance(err, aiohttp.ServerDisconnectedError):
        return "the connection was closed before an answer came"
    return _cause_of_system(err)


def _cause_of_system(err: Exception) -> str:
    if isinstance(err, ssl.SSLCertVerificationError):
        return err.verify_message
    if isinstance(err, ssl.SSLError):
        return err.reason or str(err)
    if isinstance(err, OSError) and err.errno is not None:
        # asyncio replaces the text of a failed connect; that of a name that is not found is right.
        has_text = isinstance(err, ForeignListener) or err.errno <= 0
        return (err.strerror if has_text else "") or os.strerror(err.errno)
    if isinstance(err, OSError) and not isinstance(err, aiohttp.ClientError):
        return "no address of it accepts a connection" if "Multiple" in str(err) else str(err)
    return str(err) or type(err).__name__
