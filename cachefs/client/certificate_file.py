"""The certificate that a server presents, read again when its files change: a certificate may be
renewed without a restart.

New connections get the newest certificate that could be used; the others go on. If files cannot be
used, the process logs it and presents the former certificate.
"""

from __future__ import annotations

import logging
import os
import ssl
from typing import Any

from cachefs.client.credentials import certificate_facts, server_context
from cachefs.core.errors import BadConfig
from cachefs.core.specs import Security

log = logging.getLogger(__name__)

Signature = tuple[tuple[int, ...] | None, ...]


class CertificateFile:
    """The certificate of one server. `context` is that of its listener, None for http. `facts`,
    which stays the same object: for `cachefs.core.health`. `look` may run in another thread than
    the rest: it replaces each value in one assignment."""

    def __init__(self, security: Security) -> None:
        """Reads the files. Raises BadConfig."""
        self._security = security
        self._seen = self._signature()
        self._logged = ""  # the last error that was logged
        self.context = self._newest = server_context(security)
        self.facts: dict[str, Any] = certificate_facts(security)
        if self.context is not None:
            self.context.sni_callback = self._present

    def _present(
        self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, _: ssl.SSLContext
    ) -> None:
        """Called at each handshake, also of clients that name no server."""
        assert self._newest is not None
        connection.context = self._newest

    def look(self) -> None:
        """Reads the files again if they have changed. Blocks on their disk."""
        seen = self._signature()
        if self.context is None or seen == self._seen:
            return
        try:
            newest, facts = server_context(self._security), certificate_facts(self._security)
        except BadConfig as err:
            line = err.one_line()
            if line != self._logged:
                log.error("cannot reload the certificate, the former one is presented: %s", line)
            self._logged = self.facts["cause"] = line
            return
        self._newest, self._seen, self._logged = newest, seen, ""
        self.facts.update(facts, cause="")
        log.info("%s: the certificate was reloaded", self._security.tls_cert)

    def _signature(self) -> Signature:
        """Returns the values by which changed or replaced files differ."""
        security = self._security
        return tuple(_stat(path) for path in (security.tls_cert, security.tls_key) if path)


def _stat(path: str) -> tuple[int, ...] | None:
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns
