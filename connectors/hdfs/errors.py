"""Translation of the failures of hdfs-native to typed errors: Java exceptions, by their class, and
failures of connections. Pure."""

from __future__ import annotations

import re
from typing import Final

from cachefs.core import errors
from cachefs.core.errors import CacheFSError

WRONG_HOST: Final = "check the host and port of the NameNode, or name a conf_dir that has its name"
MAY_READ: Final = "the source's user needs to read it; the option user names another one"
KERBEROS: Final = "run kinit, or set hadoop.security.authentication in conf_dir"
LATER: Final = "try again later"
_JAVA: Final = re.compile(r'RPCError\("([\w.$]+)", "((?:[^"\\]|\\")*)')
_LONGEST: Final = 300
_DENIED: Final = frozenset({"AccessControlException", "AuthorizationException"})
_NO_SUCH: Final = frozenset(
    {
        "FileNotFoundException",
        "IllegalArgumentException",
        "InvalidPathException",
        "ParentNotDirectoryException",
        "UnresolvedPathException",
    }
)
_PASSING: Final = frozenset(
    {
        "NameNodeNotInitializedException",
        "ObserverRetryOnActiveException",
        "RetriableException",
        "RetryStartFileException",
        "SafeModeException",
        "ServerTooBusyException",
        "StandbyException",
    }
)


def classify(error: BaseException, path: str) -> CacheFSError:
    """Returns the typed error of a failed call."""
    text = str(error).partition("\n")[0][:_LONGEST]
    if isinstance(error, FileNotFoundError):
        return errors.NotFound("no such file or directory", path=path)
    if isinstance(error, PermissionError):
        return errors.AccessDenied(text, path=path, remedy=MAY_READ)
    if isinstance(error, OSError):
        return _of_connection(text, path)
    java = _JAVA.search(str(error))
    if java:
        name = java.group(1).rpartition(".")[2].rpartition("$")[2]
        return _of_java(name, java.group(2).partition("\\n")[0].replace('\\"', '"'), path)
    return _of_library(text, path)


def _of_connection(text: str, path: str) -> CacheFSError:
    if "lookup address" in text or "not known" in text:
        cause = "the NameNode's host name cannot be resolved"
        return errors.Unreachable(cause, path=path, remedy=WRONG_HOST)
    return errors.Unreachable(f"the NameNode is not reached: {text}", path=path, remedy=WRONG_HOST)


def _of_java(name: str, message: str, path: str) -> CacheFSError:
    message = message[:_LONGEST]
    if name in _DENIED:
        return errors.AccessDenied(message, path=path, remedy=MAY_READ)
    if name in _NO_SUCH:
        return errors.NotFound("no such file or directory", path=path)
    if name in _PASSING:
        return errors.Unavailable(f"the NameNode cannot serve now: {name}", path=path, remedy=LATER)
    return errors.OriginError(f"the NameNode refused: {name}: {message}", path=path)


def _of_library(text: str, path: str) -> CacheFSError:
    if "spawn worker thread" in text:
        return errors.Unreachable("the client library can start no thread", path=path)
    if "SASL" in text or "GSSAPI" in text:
        return errors.CredentialsMissing(text, path=path, remedy=KERBEROS)
    if "DataNodes failed" in text:
        return errors.Unreachable("no DataNode with a replica answers", path=path, remedy=LATER)
    if "DataTransferError" in text or "IOError" in text or "ChecksumError" in text:
        return errors.Unavailable(f"a DataNode failed: {text}", path=path, remedy=LATER)
    if "BlocksNotFound" in text:
        return errors.Unavailable("its blocks have no DataNode", path=path, remedy=LATER)
    return errors.OriginError(f"the client library failed: {text}", path=path)
