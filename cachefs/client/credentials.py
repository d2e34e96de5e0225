"""The credentials of a process for the network, from its token file and its TLS files.

A token file must belong to the reader (or root), have mode 0600 or less, and be no symbolic link:
every process that can read it has its rights. A directory of credentials, which only root and the
service may enter, may have other files. systemd gives a service's user a file of root by an ACL,
whose mask `stat` shows as a group that may read. Kubernetes gives it a file of root and of the
pod's group, behind links that it replaces when the secret changes.
"""

from __future__ import annotations

import os
import ssl
import stat
from typing import Any, Final

from cachefs.core.access import Token, parse_tokens
from cachefs.core.certificates import expires_at_s
from cachefs.core.errors import AccessDenied, BadConfig
from cachefs.core.specs import Security
from cachefs.network.checked_connect import ListenerCheck, accept_any_listener
from cachefs.network.socket_owners import check_listener

_MAX_BYTES: Final = 1 << 20
_SERVICE_DIRECTORY: Final = "CREDENTIALS_DIRECTORY"  # of systemd's LoadCredential=, and of pods
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def read_tokens(path: str) -> list[Token]:
    """Returns the tokens of a file. Raises BadConfig and AccessDenied with a remedy."""
    try:
        fd = os.open(real_path(path), _FLAGS)
    except OSError as err:
        cause = f"token file cannot be opened: {err.strerror}"
        raise BadConfig(cause, path=path, remedy="it must be a regular file, not a link") from err
    try:
        _check_private(os.fstat(fd), path)
        with open(fd, encoding="utf-8", errors="surrogateescape", closefd=False) as file:
            text = file.read(_MAX_BYTES + 1)
    except OSError as err:
        cause = f"token file cannot be read: {err.strerror}"
        raise BadConfig(cause, path=path, remedy="check its disk") from err
    finally:
        os.close(fd)
    if len(text) > _MAX_BYTES:
        raise BadConfig("token file is too long", path=path)
    return parse_tokens(text, path)


def real_path(path: str) -> str:
    """Returns the path of the file itself. Only links of the service's own directory, to files in
    it, are followed."""
    directory = _service_directory(path)
    real = os.path.realpath(path)
    return real if directory and real.startswith(f"{os.path.realpath(directory)}/") else path


def _check_private(info: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(info.st_mode):
        raise BadConfig("token file is not a regular file", path=path)
    if info.st_uid not in (0, os.geteuid()):
        remedy = "use a file of your own"
        raise AccessDenied(f"token file belongs to user {info.st_uid}", path=path, remedy=remedy)
    allowed = stat.S_IRGRP if _is_service_credential(info, path) else 0
    if stat.S_IMODE(info.st_mode) & 0o077 & ~allowed:
        raise AccessDenied("others may read the token file", path=path, remedy="chmod 600 it")


def _is_service_credential(info: os.stat_result, path: str) -> bool:
    """Returns whether systemd or Kubernetes made the file for this service: root's, in the
    directory that only root and the user of the service may enter."""
    return bool(_service_directory(path)) and info.st_uid == 0


def _service_directory(path: str) -> str:
    """Returns the directory of the service's credentials if a path is in it, else ""."""
    directory = os.environ.get(_SERVICE_DIRECTORY, "")
    return directory if directory and os.path.dirname(path) == directory else ""


def presented_token(security: Security) -> str:
    """Returns the token that this process presents; "" if none. Raises as `read_tokens`."""
    return read_tokens(security.token_file)[0].secret if security.token_file else ""


def presents_to(security: Security) -> ListenerCheck:
    """Returns the check that raises ForeignListener for an address to which this process must not
    present its token. A token that a user configured may be presented to every address."""
    return check_listener if security.own_token else accept_any_listener


def client_context(security: Security, url: str) -> ssl.SSLContext | None:
    """Returns the TLS context for connections to `url`; None for http. Raises BadConfig."""
    if not url.startswith("https://"):
        return None
    try:
        context = ssl.create_default_context(cafile=security.tls_ca or None)
    except (OSError, ssl.SSLError) as err:
        raise BadConfig(f"tls_ca cannot be used: {err}", path=security.tls_ca) from err
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def certificate_facts(security: Security) -> dict[str, Any]:
    """Returns the server's certificate for `cachefs.core.health`; {} for http. Raises BadConfig."""
    if not security.tls_cert:
        return {}
    try:
        with open(security.tls_cert, encoding="ascii", errors="replace") as file:
            expires_s = expires_at_s(file.read(_MAX_BYTES))
    except (OSError, ValueError) as err:
        raise BadConfig(f"tls_cert cannot be used: {err}", path=security.tls_cert) from err
    return {"path": security.tls_cert, "expires_at_s": expires_s}


def server_context(security: Security) -> ssl.SSLContext | None:
    """Returns the TLS context of a server; None for http. Raises BadConfig."""
    if not security.tls_cert:
        if security.tls_key:
            raise BadConfig("tls_key is given without tls_cert", remedy="give --tls-cert too")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(security.tls_cert, security.tls_key or None)
    except (OSError, ssl.SSLError) as err:
        raise BadConfig(f"tls_cert cannot be used: {err}", path=security.tls_cert) from err
    return context
