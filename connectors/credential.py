"""A credential by reference: the name of a source's option stands for secrets of this machine.

`NAME` is a directory of files, `CREDENTIALS_DIR/NAME/FIELD` (a mounted Kubernetes secret), or a
prefix of variables, `CACHEFS_CREDENTIAL_NAME_FIELD`. The master and every worker resolve the name
on their own machine. Records, logs and listings hold the name only.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from cachefs.core.errors import BadConfig, CredentialsMissing

OPTION: Final = "credential"
HELP: Final = "name of a credential: files in /etc/cachefs/credentials.d/NAME on each machine"
DIRECTORY_VARIABLE: Final = "CACHEFS_CREDENTIALS_DIR"
DIRECTORY: Final = "/etc/cachefs/credentials.d"
PREFIX: Final = "CACHEFS_CREDENTIAL_"
MAX_BYTES: Final = 64 << 10  # of a file
LOOK_S: Final = 1.0
MOST_READS: Final = 4  # of files that are replaced again and again
_FIELD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def parse_name(options: Mapping[str, str], *others: str) -> str:
    """Returns the name in the options, or "". Raises BadConfig for a name that cannot be, and if
    one of the other options, which say who the caller is as well, is given too."""
    name = options.get(OPTION, "")
    if name and not _NAME.fullmatch(name):
        remedy = "1 to 63 letters, digits, dots, hyphens and underscores"
        raise BadConfig(f"bad name of a credential {name!r}", remedy=remedy)
    also = next((other for other in others if name and options.get(other)), "")
    if also:
        raise BadConfig(f"{OPTION} and {also} exclude each other", remedy="give one of them")
    return name


def fields_of(name: str, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Returns the fields that this machine has of a credential, for a reader that knows none."""
    try:
        found = os.listdir(directory_of(name, environ))
    except OSError:
        prefix = _variable(name, "")
        found = [key.removeprefix(prefix).lower() for key in environ if key.startswith(prefix)]
    return sorted(field for field in found if _FIELD.fullmatch(field))


def path_of(name: str, field: str, environ: Mapping[str, str] = os.environ) -> str:
    """Returns the path of a field's file; "" if the credential is no directory."""
    directory = directory_of(name, environ)
    return os.path.join(directory, field) if os.path.isdir(directory) else ""


def directory_of(name: str, environ: Mapping[str, str] = os.environ) -> str:
    """Returns the path of the directory that a credential has, or would have."""
    return os.path.join(environ.get(DIRECTORY_VARIABLE) or DIRECTORY, name)


def _variable(name: str, field: str) -> str:
    return PREFIX + re.sub("[^A-Za-z0-9]", "_", f"{name}_{field}").upper()


class Credential:
    """The secrets of one name, read again when they are older than `LOOK_S`. For several threads:
    each value is replaced in one assignment."""

    def __init__(
        self,
        name: str,
        fields: Sequence[str],
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._fields = fields
        self._environ = environ
        self._clock = clock
        self._kept: tuple[float, tuple[str, ...]] | None = None

    def __repr__(self) -> str:
        return f"Credential({self._name})"

    def values(self) -> tuple[str, ...]:
        """Returns the secrets in the order of the fields; "" for a field that this machine does not
        have. Raises CredentialsMissing if it has none, or if a file cannot be used."""
        kept, now = self._kept, self._clock()
        if kept is None or now - kept[0] >= LOOK_S:
            kept = self._kept = now, self._read_whole()
        return kept[1]

    def forget(self) -> None:
        """Has the next call read the secrets, after the origin refused them."""
        self._kept = None

    def _read_whole(self) -> tuple[str, ...]:
        """Returns the secrets that two reads agree on. One read may get a new key with the secret
        of the former one, where all files are replaced at once (a mounted Kubernetes secret)."""
        found = self._read()
        for _ in range(MOST_READS):
            before, found = found, self._read()
            if found == before:
                break
        return found

    def _read(self) -> tuple[str, ...]:
        directory = directory_of(self._name, self._environ)
        if os.path.isdir(directory):
            found = [_text(os.path.join(directory, field)) for field in self._fields]
        else:
            variables = [_variable(self._name, field) for field in self._fields]
            found = [self._environ.get(variable, "") for variable in variables]
        if not any(found):
            names = ", ".join(self._fields) or "that its store needs"
            raise CredentialsMissing(
                f"the credential {self._name!r} is not on this machine",
                remedy=f"make {directory} with the files {names}, on the master and each worker",
            )
        return tuple(found)


def _text(path: str) -> str:
    """Returns the text of a file without white space around it; "" if there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    except OSError as err:
        raise _unusable(path, err.strerror or str(err)) from err
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _unusable(path, "it is no file")
        if status.st_mode & stat.S_IWOTH:
            raise _unusable(path, "every user can write it")
        data = os.read(descriptor, MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_BYTES:
        raise _unusable(path, f"it has more than {MAX_BYTES} bytes")
    try:
        return data.decode().strip()
    except UnicodeDecodeError as err:
        raise _unusable(path, "it is no text") from err


def _unusable(path: str, why: str) -> CredentialsMissing:
    return CredentialsMissing(f"a file of a credential cannot be used: {why}", path=path)
