"""A server of access tokens, as the libraries of Google and Azure ask one: in a thread."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa


@dataclass
class TokenServer:
    """`asked` counts requests; `status` other than 200 is what the next ones get."""

    port: int
    asked: int = 0
    status: int = 200
    lifetime_s: float = 3600.0
    paths: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/token"

    def answer(self) -> bytes:
        self.asked += 1
        if self.status != 200:
            refusal = {"error": "invalid_grant", "error_description": "no such account"}
            return json.dumps(refusal).encode()
        facts: dict[str, str | int] = {
            "access_token": f"token-{self.asked}",
            "expires_in": int(self.lifetime_s),
            "expires_on": str(int(time.time() + self.lifetime_s)),
            "token_type": "Bearer",
            "resource": "https://storage.azure.com",
        }
        return json.dumps(facts).encode()


def service_account(token_url: str) -> str:
    """The key file of a service account of Google's that gets its tokens at a URL."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    facts = {
        "type": "service_account",
        "client_email": "reader@p.example",
        "private_key": pem.decode(),
        "token_uri": token_url,
    }
    return json.dumps(facts)


@contextlib.contextmanager
def token_server() -> Iterator[TokenServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            tokens.paths.append(self.path)
            body = tokens.answer()
            self.send_response(tokens.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            """Is silent."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        tokens = TokenServer(server.server_port)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield tokens
        finally:
            server.shutdown()
            thread.join()
