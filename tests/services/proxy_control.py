"""The proxy's own paths, for benches in another process: `/-/` is no legal bucket's name.

GET /-/counters -> Counters as JSON · POST /-/reset · POST /-/settings {rate_bytes_per_s, latency_s}
POST /-/script {fault: {type: "cut_body", after_bytes: 1}, method, key, query, nth, times}
POST /-/clear
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tests.services.faults import Armed, Rule, WireFault
from tests.services.http_wire import Head, Stream

if TYPE_CHECKING:
    from tests.services.proxy import FaultProxy

PREFIX = b"/-/"
MAX_BODY_BYTES = 64 << 10


def answer(proxy: FaultProxy, head: Head, client: Stream) -> bool:
    """Serves one request of this kind; True: the connection may go on."""
    method, target, _ = head.start.split(b" ", 2)
    pieces: list[bytes] = []
    client.move(head.length_bytes or 0, lambda p: pieces.append(bytes(p)), lambda: MAX_BODY_BYTES)
    body = msgspec.json.decode(b"".join(pieces) or b"{}")
    try:
        reply, number = _act(proxy, (method + b" " + target).decode("latin-1"), body), b"200 OK"
    except (LookupError, TypeError, ValueError, msgspec.ValidationError) as err:
        reply, number = {"error": str(err)}, b"400 Bad Request"
    encoded = msgspec.json.encode(reply)
    client.send(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (number, len(encoded)) + encoded)
    return not head.closes


def _act(proxy: FaultProxy, what: str, body: dict[str, Any]) -> Any:
    if what == "GET /-/counters":
        return proxy.counters()
    if what == "POST /-/settings":
        return _set(proxy, **body)
    if what == "POST /-/script":
        fault = msgspec.convert(body.pop("fault"), WireFault)
        proxy.arm(Armed(msgspec.convert({**body, "fault": fault}, Rule)))
        return {}
    {"POST /-/reset": proxy.reset, "POST /-/clear": proxy.clear}[what]()
    return {}


def _set(
    proxy: FaultProxy, *, rate_bytes_per_s: float | None = None, latency_s: float = 0.0
) -> dict[str, Any]:
    proxy.rate_bytes_per_s = rate_bytes_per_s
    proxy.latency_s = latency_s
    return {}
