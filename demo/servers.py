"""The S3 server of the demo, on loopback: versitygw if it is built, else moto."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.services import moto_s3, versitygw
from tests.services.s3_server import S3Server

BUCKET = "demo"
PREFIX = "train"
SOURCE = f"s3://{BUCKET}/{PREFIX}"
UPLOADERS = 8


def find_versitygw() -> bool:
    """Returns whether versitygw exists, and pins its path. Call it before the cache home
    changes."""
    try:
        os.environ["CACHEFS_VERSITYGW"] = versitygw.binary()
    except FileNotFoundError:
        return False
    return True


def make_certificate(folder: Path) -> Path | None:
    """Writes a self-signed certificate of loopback and its key into one PEM file (10 ms). Returns
    None without openssl."""
    if shutil.which("openssl") is None:
        return None
    key, path = folder / "server.key", folder / "server.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=CacheFS demo"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
            *("-addext", "basicConstraints=critical,CA:FALSE"),
            *("-keyout", str(key), "-out", str(path)),
        ],
        check=True,
        capture_output=True,
    )
    path.write_bytes(key.read_bytes() + path.read_bytes())
    return path


@contextlib.contextmanager
def s3_server(folder: Path, *, real: bool) -> Iterator[tuple[str, S3Server]]:
    """Runs a server, and yields its name and itself: versitygw if `real`, with TLS if possible,
    else moto."""
    if real:
        folder.mkdir(exist_ok=True)
        pem = make_certificate(folder)
        with versitygw.versitygw(folder, certificate=pem, ca_bundle=pem) as server:
            yield "versitygw, over TLS" if pem else "versitygw", server
    else:
        with moto_s3.moto_s3(folder) as server:
            yield "moto (in Python, slow: `make versitygw` builds a faster server)", server


def upload(server: S3Server, root: Path, names: Iterable[str]) -> None:
    """Creates the bucket, and uploads the files below `root` with these names, below the prefix."""
    client = server.client()
    client.create_bucket(Bucket=BUCKET)

    def put(name: str) -> None:
        client.upload_file(str(root / name), BUCKET, f"{PREFIX}/{name}")

    with ThreadPoolExecutor(UPLOADERS) as pool:
        list(pool.map(put, names))
