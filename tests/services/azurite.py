"""azurite, a server with the REST API of Azure Blob Storage, for tests and benches: on a free
loopback port, in memory, stopped by pid.

`scripts/azurite` installs it once per user; `$CACHEFS_AZURITE` names another one.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from connectors.azure.sas import API_VERSION
from tests.services.azure_key import authorization
from tests.services.server_process import ServerProcess, free_port

SCRIPT = Path(__file__).parents[2] / "scripts" / "azurite"
ACCOUNT = "cachefstest"
KEY = base64.b64encode(b"a key of a server on loopback").decode()


@dataclass(kw_only=True)
class AzureServer(ServerProcess):
    """A process that speaks the REST API, and what a test changes in its containers."""

    @property
    def endpoint_url(self) -> str:
        return f"{self.base_url}/{ACCOUNT}"

    def make_container(self, container: str, *, public: bool = False) -> None:
        headers = {"x-ms-blob-public-access": "container"} if public else {}
        self._send("PUT", f"/{container}", {"restype": "container"}, headers)

    def put(self, container: str, key: str, data: bytes, *, is_folder: bool = False) -> None:
        headers = {"x-ms-blob-type": "BlockBlob"}
        headers |= {"x-ms-meta-hdi_isfolder": "true"} if is_folder else {}
        self._send("PUT", f"/{container}/{quote(key)}", {}, headers, data)

    def delete(self, container: str, key: str) -> None:
        self._send("DELETE", f"/{container}/{quote(key)}", {}, {})

    def _send(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        headers: dict[str, str],
        data: bytes = b"",
    ) -> None:
        now = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
        headers = {**headers, "x-ms-date": now, "x-ms-version": API_VERSION}
        if method == "PUT":
            headers["Content-Type"] = "application/octet-stream"
        path = f"/{ACCOUNT}{path}"
        signed = authorization(method, ACCOUNT, KEY, path, query, headers, len(data))
        path += "".join(f"?{name}={value}" for name, value in query.items())
        self.send(method, path, {**headers, "Authorization": signed}, data or None)


@contextlib.contextmanager
def azurite(
    directory: Path, *, certificate: Path | None = None, ca_bundle: Path | None = None
) -> Iterator[AzureServer]:
    """A server without containers; `directory` gets its log. With a certificate (PEM with its key)
    it speaks TLS; `ca_bundle` is what its clients have to trust."""
    found = subprocess.run([SCRIPT], capture_output=True, check=True, text=True)
    node = shutil.which("node")
    if node is None:
        raise FileNotFoundError("azurite needs node: apt-get install nodejs npm")
    port = free_port()
    command = [node, found.stdout.strip(), "--inMemoryPersistence", "--skipApiVersionCheck"]
    command += ["--disableTelemetry", "--silent", "--blobHost", "127.0.0.1"]
    command += ["--blobPort", str(port)]
    if certificate:
        command += ["--cert", str(certificate), "--key", str(certificate)]
    server = AzureServer(
        command=command,
        environment={"AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}", "HOME": os.fspath(directory)},
        port=port,
        log=directory / "azurite.log",
        ca_bundle=ca_bundle,
    )
    server.start()
    try:
        yield server
    finally:
        server.stop()
