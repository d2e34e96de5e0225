"""Translation of the exceptions of file system libraries to typed errors. Pure.

A library raises what the library below it raises. Known are Python's own exceptions, the status of
an HTTP reply, and a few names of classes.
"""

from __future__ import annotations

import errno
import re
from typing import Final

from cachefs.core import errors
from cachefs.core.errors import CacheFSError

_LOG_IN: Final = "check user, key and host key; give secrets by --option NAME=file:PATH or env:NAME"
_RIGHTS: Final = "check the credentials, and their right to read and to list"
_REACH: Final = "check host, port and credentials"
_GONE: Final = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
# Of paramiko, aiohttp, fsspec, requests, botocore, azure-core and smbprotocol: no reply arrived.
_CUT: Final = frozenset(
    {
        "ClientConnectionError",
        "ConnectTimeoutError",
        "ConnectionError",
        "EOFError",
        "EndpointConnectionError",
        "FSTimeoutError",
        "SMBConnectionClosed",
        "SSHException",
        "ServiceRequestError",
        "Timeout",
        "gaierror",
    }
)
_NO_WAY: Final = frozenset(
    {
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENOTCONN,  # a FUSE file system of this machine that has ended
        errno.ETIMEDOUT,
    }
)
# The texts of pyarrow: S3, Google Cloud Storage, Azure. Their client got no reply.
_UNREACHED: Final = re.compile(
    r"AWS Error NETWORK_CONNECTION|CURL error \[(5|6|7|28|35|52|55|56|60)\]"
    r"|Fail to get a new connection"
)
_MOST_CAUSES: Final = 10
_LOGINS: Final = frozenset(
    {
        "AuthenticationException",
        "BadHostKeyException",
        "ClientAuthenticationError",
        "NoCredentialsError",
        "PasswordRequiredException",
    }
)
# pyarrow raises OSError for all replies of S3 that are no success.
_REFUSED: Final = re.compile(
    r"AWS Error (ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|EXPIRED_TOKEN)"
)
_USER: Final = re.compile(r"//[^/@\s]*@")
_QUERY: Final = re.compile(r"([\w+.-]+://[^\s?'\"]*)\?[^\s'\"]*")
_HOPELESS: Final = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})


def translated(error: Exception, path: str) -> CacheFSError:
    """Returns the typed error of a library's exception."""
    names = {cls.__name__ for cls in type(error).__mro__}
    if isinstance(error, _GONE):
        return errors.NotFound("no such file or directory", path=path)
    if isinstance(error, PermissionError):
        return errors.AccessDenied(_first_line(error), path=path)
    if names & _LOGINS:
        return errors.CredentialsMissing(_first_line(error), remedy=_LOG_IN, path=path)
    if isinstance(error, ImportError):
        remedy = "install what the message names, for the master and for every worker"
        return errors.Unsupported(_first_line(error), remedy=remedy, path=path)
    if (status := _status(error)) is not None:
        return _by_status(status, error, path)
    if _is_unreached(error):
        return errors.Unreachable(_first_line(error), remedy=_REACH, path=path)
    if isinstance(error, OSError):
        return _of_system(error, path)
    return errors.OriginError(f"{type(error).__name__}: {_first_line(error)}", path=path)


def _of_system(error: OSError, path: str) -> CacheFSError:
    """Returns the error of a system call, or of a library that uses OSError for everything."""
    if error.errno in _HOPELESS:
        return errors.OriginError(_first_line(error), path=path)
    if _REFUSED.search(str(error)):
        return errors.AccessDenied(_first_line(error), remedy=_RIGHTS, path=path)
    return errors.Unavailable(_first_line(error), path=path)


def _is_unreached(error: Exception) -> bool:
    """Returns whether a request got no reply, by its exception or one that led to it. Libraries
    raise types of their own: smbprotocol a ValueError where a connection is refused."""
    found: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if found is None or (isinstance(found, Exception) and _status(found) is not None):
            return False
        names = {cls.__name__ for cls in type(found).__mro__}
        if isinstance(found, TimeoutError | ConnectionError) or names & _CUT:
            return True
        if isinstance(found, OSError) and _has_no_way(found):
            return True
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    return False


def _has_no_way(error: OSError) -> bool:
    is_of_paramiko = type(error).__name__ == "NoValidConnectionsError"
    return is_of_paramiko or error.errno in _NO_WAY or bool(_UNREACHED.search(str(error)))


def _status(error: Exception) -> int | None:
    """Returns the HTTP status that some libraries keep in their exceptions."""
    status = getattr(error, "status", None) or getattr(error, "status_code", None)
    return status if isinstance(status, int) else None


def _by_status(status: int, error: Exception, path: str) -> CacheFSError:
    cause = f"{status}: {_first_line(error)}"
    if status == 404:
        return errors.NotFound("no such file or directory", path=path)
    if status in (401, 403):
        return errors.AccessDenied(cause, path=path)
    if status in (412, 416):
        return errors.Stale("the file is another version now", path=path)
    if status == 429:
        return errors.Throttled(cause, path=path)
    is_passing = status == 408 or status >= 500
    return (errors.Unavailable if is_passing else errors.OriginError)(cause, path=path)


def _first_line(error: Exception) -> str:
    """Returns the first line of the message. Libraries show URLs with the secrets in them."""
    text = (str(error).splitlines() or [""])[0].removeprefix("[Errno None] ")
    text = text or type(error).__name__
    return _QUERY.sub(r"\1", _USER.sub("//", text))[:300]
