"""The signature of a test's own writes to azurite, with the account's key (Shared Key)."""

from __future__ import annotations

import base64
import hashlib
import hmac


def authorization(
    method: str,
    account: str,
    key: str,
    path: str,
    query: dict[str, str],
    headers: dict[str, str],
    size: int,
) -> str:
    """The Authorization header of a request. `path` starts with the account, as in the URL."""
    x_ms = sorted(name for name in headers if name.startswith("x-ms-"))
    length = str(size) if size else ""
    fixed = ["", "", length, "", headers.get("Content-Type", ""), "", "", "", "", "", ""]
    resource = f"/{account}{path}" + "".join(f"\n{name}:{query[name]}" for name in sorted(query))
    lines = [method, *fixed, *(f"{name}:{headers[name]}" for name in x_ms), resource]
    digest = hmac.new(base64.b64decode(key), "\n".join(lines).encode(), hashlib.sha256).digest()
    return f"SharedKey {account}:{base64.b64encode(digest).decode()}"
