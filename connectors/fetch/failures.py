"""Translation of libcurl's failures to typed errors. Pure."""

from __future__ import annotations

from typing import Final

import pycurl

from cachefs.core.errors import BadBody, CacheFSError, OriginError, Unreachable
from connectors.tls import from_tls

_ENDPOINT: Final = "check the endpoint URL"
_PROXY: Final = "check HTTP_PROXY and HTTPS_PROXY"
_TLS: Final = frozenset(
    {
        pycurl.E_SSL_CONNECT_ERROR,
        pycurl.E_PEER_FAILED_VERIFICATION,
        pycurl.E_SSL_CACERT_BADFILE,
        pycurl.E_SSL_CIPHER,
    }
)
_MEANINGS: Final[dict[int, tuple[type[CacheFSError], str, str]]] = {
    pycurl.E_COULDNT_RESOLVE_HOST: (Unreachable, "the endpoint cannot be reached", _ENDPOINT),
    pycurl.E_COULDNT_CONNECT: (Unreachable, "the endpoint cannot be reached", _ENDPOINT),
    pycurl.E_URL_MALFORMAT: (OriginError, "the endpoint URL is malformed", _ENDPOINT),
    pycurl.E_BAD_CONTENT_ENCODING: (OriginError, "the reply has an unsupported encoding", ""),
    pycurl.E_UNSUPPORTED_PROTOCOL: (OriginError, "the endpoint does not speak HTTP", _ENDPOINT),
    pycurl.E_FTP_WEIRD_SERVER_REPLY: (
        OriginError,
        "the endpoint does not speak HTTP",
        _ENDPOINT,
    ),
}


def from_curl(
    code: int, text: str, path: str, *, has_body: bool, proxy_status: int
) -> CacheFSError:
    """Returns the typed error for libcurl's `code`. `has_body`: the head of a 2xx reply was
    received. `proxy_status`: the status with which a proxy refused to connect; 0: no refusal."""
    if proxy_status == 407:
        remedy = "set user and password in HTTPS_PROXY"
        return Unreachable("the proxy wants credentials", remedy=remedy, path=path)
    if proxy_status:
        cause = f"the proxy refused to connect ({proxy_status})"
        return Unreachable(cause, remedy=_PROXY, path=path)
    if code in _TLS:
        return from_tls(text, path)
    if code in _MEANINGS:
        kind, cause, remedy = _MEANINGS[code]
        return kind(f"{cause} ({text})", remedy=remedy, path=path)
    if code == pycurl.E_OPERATION_TIMEDOUT:
        return Unreachable(f"no answer in time ({text})", path=path)
    if has_body:
        return BadBody(f"the body ended early ({text})", path=path)
    return Unreachable(f"the connection was cut ({text or code})", path=path)
