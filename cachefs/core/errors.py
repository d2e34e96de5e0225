"""The typed errors of CacheFS: each has a code for the wire, an errno for the kernel, a retry rule.

The component that detects a failure raises it (connector, store, tier, CLI). Four edges translate:
connector (library -> ours), wire (ours <-> `Failure`), FUSE (ours -> errno), CLI (ours -> one line
and an exit code). Only `connectors.retry` retries, and only if `retryable`.
"""

from __future__ import annotations

import errno
from typing import ClassVar, Final

from cachefs.core.printable import cut, printable

MOST_CAUSE_CHARS: Final = 2000  # an origin chooses the text; a failure must fit into one datagram
MOST_REQUEST_ID_CHARS: Final = 200


class CacheFSError(Exception):
    """Base of every expected failure. `cause`: one line, no secrets, and no control characters of
    an origin; a longer one is cut. `remedy`: for the user."""

    code: ClassVar[str] = "internal"
    errno: ClassVar[int] = errno.EIO
    retryable: ClassVar[bool] = False

    def __init__(
        self, cause: str, *, remedy: str = "", path: str = "", request_id: str = ""
    ) -> None:
        cause = cut(cause, MOST_CAUSE_CHARS)
        self.cause = cause if cause.isprintable() else printable(" ".join(cause.splitlines()))
        super().__init__(self.cause)
        if remedy:
            self.add_note(remedy)  # tracebacks show it
        self.remedy = remedy
        self.path = path
        self.request_id = cut(request_id, MOST_REQUEST_ID_CHARS)

    def one_line(self) -> str:
        """Returns path, cause, request id and remedy as one line for people."""
        line = f"{self.path}: {self.cause}" if self.path else self.cause
        if self.request_id:
            line += f" (request id {self.request_id})"
        return printable(f"{line}; {self.remedy}" if self.remedy else line)


class NotFound(CacheFSError):
    """No such key, directory, bucket or handle."""

    code = "not-found"
    errno = errno.ENOENT


class AccessDenied(CacheFSError):
    """The origin, or a policy, refuses this caller."""

    code = "access-denied"
    errno = errno.EACCES


class CredentialsMissing(CacheFSError):
    """No valid credentials: none found, expired, or rejected because of the signature's time."""

    code = "credentials-missing"
    errno = errno.EACCES


class Stale(CacheFSError):
    """The object is no longer the expected version (412, another etag, a dropped ino)."""

    code = "stale"
    errno = errno.ESTALE


class Unreachable(CacheFSError):
    """The peer could not be reached, or closed the connection. A retry may succeed."""

    code = "unreachable"
    retryable = True


class Throttled(CacheFSError):
    """The origin requests fewer requests (503 SlowDown, 429)."""

    code = "throttled"
    retryable = True


class Unavailable(CacheFSError):
    """The origin failed temporarily (500, 502, 503, 504)."""

    code = "unavailable"
    retryable = True


class BadBody(CacheFSError):
    """A body has another length, range or etag than requested."""

    code = "bad-body"
    retryable = True


class OriginError(CacheFSError):
    """The origin returned an error that a retry will not change."""

    code = "origin-error"


class Archived(OriginError):
    """The object is in an archive class and must be restored first (Glacier, Deep Archive)."""

    code = "archived"


class DeadlineExceeded(CacheFSError):
    """A wait ended at its deadline."""

    code = "deadline"


class Interrupted(CacheFSError):
    """The caller got a signal. The shared work that it waited for continues."""

    code = "interrupted"
    errno = errno.EINTR


class NestedCall(CacheFSError):
    """A signal handler or a finaliser calls what its thread is in: it would wait for itself."""

    code = "nested-call"
    errno = errno.EDEADLK


class AlreadyExists(CacheFSError):
    """The name is taken, and the caller wanted to create it."""

    code = "already-exists"
    errno = errno.EEXIST


class NotEmpty(CacheFSError):
    """A directory that has entries cannot be removed."""

    code = "not-empty"
    errno = errno.ENOTEMPTY


class NotADirectory(CacheFSError):
    code = "not-a-directory"
    errno = errno.ENOTDIR


class IsADirectory(CacheFSError):
    code = "is-a-directory"
    errno = errno.EISDIR


class ReadOnly(CacheFSError):
    code = "read-only"
    errno = errno.EROFS


class NoSpace(CacheFSError):
    """The tier, or the disk under it, is full."""

    code = "no-space"
    errno = errno.ENOSPC


class TooManyOpenFiles(CacheFSError):
    """A bounded table of open files is full."""

    code = "too-many-open-files"
    errno = errno.ENFILE


class NoDescriptorLeft(TooManyOpenFiles):
    """This process has as many files open as its limit allows."""

    code = "no-descriptor-left"
    errno = errno.EMFILE


class NameTooLong(CacheFSError):
    code = "name-too-long"
    errno = errno.ENAMETOOLONG


class FileTooLarge(CacheFSError):
    """A file has more blocks than a cache keeps account of, as only a sparse one has."""

    code = "file-too-large"
    errno = errno.EFBIG


class Unsupported(CacheFSError):
    """This build, store or kernel lacks the feature (a missing extra, an unknown scheme)."""

    code = "unsupported"
    errno = errno.EOPNOTSUPP


class BadConfig(CacheFSError):
    """A flag, environment variable or TOML value that cannot be used."""

    code = "bad-config"
    errno = errno.EINVAL


class CannotMount(CacheFSError):
    """The mount point, the kernel or fusermount3 does not allow the mount."""

    code = "cannot-mount"


class InUse(CacheFSError):
    """Another process uses it: a busy mount point, a cache directory locked by another server."""

    code = "in-use"
    errno = errno.EBUSY


class ProtocolError(CacheFSError):
    """A message that cannot be decoded, or an incompatible protocol version."""

    code = "protocol"


class PositionGone(CacheFSError):
    """The stream no longer has this event position: drop every cached name and start again."""

    code = "gone"
    errno = errno.ESTALE


def _tree(base: type[CacheFSError]) -> list[type[CacheFSError]]:
    return [base, *(leaf for sub in base.__subclasses__() for leaf in _tree(sub))]


_NO_DESCRIPTORS = frozenset((errno.EMFILE, errno.ENFILE))


def lacks_descriptors(error: BaseException) -> bool:
    """Returns whether a call failed because no more files may be open: no fault of a disk or of a
    peer."""
    return isinstance(error, OSError) and error.errno in _NO_DESCRIPTORS


BY_CODE: dict[str, type[CacheFSError]] = {cls.code: cls for cls in _tree(CacheFSError)}
