"""The causes of failed HTTP requests and servers of aiohttp, in the words of the system."""

from __future__ import annotations

import errno
import os
import ssl
from typing import Final

import aiohttp

from cachefs.core.errors import BadConfig
from cachefs.network.socket_owners import ForeignListener
from cachefs.network.tls_causes import cause_of_tls, remedy_of_tls

CLOSED: Final = "the connection was closed before the reply"


def cause_of(err: aiohttp.ClientError | OSError) -> str:
    """Returns the cause without addresses, which are in the caller's message."""
    if isinstance(err, aiohttp.ClientConnectorCertificateError):
        return _cause_of_system(err.certificate_error)
    if isinstance(err, aiohttp.ClientConnectorError):
        return _cause_of_system(err.os_error)
    if isinstance(err, aiohttp.ServerDisconnectedError):
        return CLOSED
    return _cause_of_system(err)


def remedy_of_handshake(err: aiohttp.ClientSSLError) -> str:
    """Returns what to do about a failed handshake."""
    if isinstance(err, aiohttp.ClientConnectorCertificateError):
        return remedy_of_tls(err.certificate_error)
    return remedy_of_tls(err)


def cannot_listen(address: str, err: OSError) -> BadConfig:
    """Returns the error of a server that cannot listen; asyncio's text repeats the address."""
    known = err.errno is not None and err.errno > 0
    cause = os.strerror(err.errno or 0) if known else err.strerror or str(err)
    taken = "end the process that listens there, or " if err.errno == errno.EADDRINUSE else ""
    return BadConfig(
        f"cannot listen on {address}: {cause}", remedy=f"{taken}choose another --listen"
    )


def _cause_of_system(err: Exception) -> str:
    if isinstance(err, ssl.SSLError):
        return cause_of_tls(err)
    if isinstance(err, OSError) and err.errno is not None:
        # asyncio replaces the text of a failed connect, but not that of a failed name lookup.
        has_text = isinstance(err, ForeignListener) or err.errno <= 0
        return (err.strerror if has_text else "") or os.strerror(err.errno)
    if isinstance(err, OSError) and not isinstance(err, aiohttp.ClientError):
        return "none of its addresses accepts a connection" if "Multiple" in str(err) else str(err)
    return str(err) or type(err).__name__
