"""What a server of tests needs to speak TLS. The demo imports this, too, so that it stands on
Python's own library alone."""

from __future__ import annotations

import ssl
import warnings
from pathlib import Path


def server_context(
    certificate: Path, newest: ssl.TLSVersion = ssl.TLSVersion.MAXIMUM_SUPPORTED
) -> ssl.SSLContext:
    """Returns a server's context. `newest`: the last version that it speaks, old ones too."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    if newest is not ssl.TLSVersion.MAXIMUM_SUPPORTED:
        context.set_ciphers("ALL:@SECLEVEL=0")  # OpenSSL refuses TLS 1.1 at every higher level
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
            context.maximum_version = newest
    return context
