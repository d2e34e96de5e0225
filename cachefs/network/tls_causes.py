"""Why TLS with a server of the cluster failed, and what to do. Pure.

A wrong clock makes a valid certificate look expired, or not yet valid: its remedy names both.
"""

from __future__ import annotations

import ssl
from typing import Final

CHECK: Final = "check --tls-ca, and https or http"
_NOT_YET_VALID: Final = 9  # codes of OpenSSL's X509_V_ERR_*
_EXPIRED: Final = 10
_OTHER_NAMES: Final = (62, 64)  # of the host, of the address
_REMEDIES: Final = {
    _NOT_YET_VALID: "set the clock of this machine, or of the one that issued the certificate",
    _EXPIRED: "install a new certificate on that machine, or set the clock of this one",
    **dict.fromkeys(
        _OTHER_NAMES, "use a name that the certificate has as subject alternative name"
    ),
}


def cause_of_tls(err: ssl.SSLError) -> str:
    """Returns the cause in the words of OpenSSL."""
    if isinstance(err, ssl.SSLCertVerificationError):
        return err.verify_message
    return err.reason or str(err)


def remedy_of_tls(err: BaseException) -> str:
    """Returns what to do about a failed handshake."""
    code = err.verify_code if isinstance(err, ssl.SSLCertVerificationError) else 0
    return _REMEDIES.get(code, CHECK)
