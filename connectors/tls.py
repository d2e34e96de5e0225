"""Translation of failed TLS handshakes to typed errors, by OpenSSL's reason as it appears in the
messages of Python's ssl module and of libcurl. Pure."""

from __future__ import annotations

from typing import Final

from cachefs.core.errors import CacheFSError, Unreachable

TRUST: Final = "name a file of certificates to trust: --ca-bundle FILE"
_OTHER_HOST: Final = "use the host name that the certificate has in --endpoint-url"
_SPEAKS_NO_TLS: Final = "the endpoint does not speak TLS"
_EXPIRED: Final = "the server's certificate has expired"
_IS_FOR_ANOTHER: Final = "the server's certificate is for another host"
_TOO_OLD: Final = "the server's version of TLS is too old"
_UNTRUSTED: Final = "the server's certificate is not trusted"
# The first match counts; compared in upper case, with "_" for a space.
_REASONS: Final = (
    ("WRONG_VERSION_NUMBER", _SPEAKS_NO_TLS, "write its URL as http://"),
    ("PACKET_LENGTH_TOO_LONG", _SPEAKS_NO_TLS, "write its URL as http://"),
    ("RECORD_LAYER_FAILURE", _SPEAKS_NO_TLS, "write its URL as http://"),
    ("CERTIFICATE_HAS_EXPIRED", _EXPIRED, "renew it at the server"),
    (
        "CERTIFICATE_IS_NOT_YET_VALID",
        "the server's certificate is not valid yet",
        "check the clock",
    ),
    ("DOESN'T_MATCH", _IS_FOR_ANOTHER, _OTHER_HOST),
    ("IP_ADDRESS_MISMATCH", _IS_FOR_ANOTHER, _OTHER_HOST),
    ("DOES_NOT_MATCH", _IS_FOR_ANOTHER, _OTHER_HOST),
    ("NO_ALTERNATIVE_CERTIFICATE_SUBJECT", _IS_FOR_ANOTHER, _OTHER_HOST),
    ("CERTIFICATE_VERIFY_FAILED", _UNTRUSTED, TRUST),
    ("SSL_CERTIFICATE_PROBLEM", _UNTRUSTED, TRUST),
    ("OPENSSL_VERIFY_RESULT", _UNTRUSTED, TRUST),
    ("UNSUPPORTED_PROTOCOL", _TOO_OLD, "enable TLS 1.2 there"),
    ("PROTOCOL_VERSION", _TOO_OLD, "enable TLS 1.2 there"),
    ("TRUST_ANCHORS", "the file of certificates cannot be used", TRUST),
)


def from_tls(text: str, path: str) -> CacheFSError:
    """Returns the typed error for the text of a failed handshake."""
    words = text.upper().replace(" ", "_")
    for reason, cause, remedy in _REASONS:
        if reason in words:
            return Unreachable(cause, remedy=remedy, path=path)
    first = text.splitlines()[0][:300] if text else "no reason given"
    return Unreachable(f"the TLS handshake failed ({first})", path=path)
