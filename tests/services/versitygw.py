"""versitygw, a real S3 server, for tests and benches: on a free loopback port, stopped by pid.

The binary is `$CACHEFS_VERSITYGW`, or on PATH, or in the tools' folder of the user's cache home.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.services.s3_server import S3Server, free_port

ACCESS_KEY = "cachefs-test"
SECRET_KEY = "cachefs-test-secret"  # noqa: S105 - of a server on loopback that lives for one test


def binary() -> str:
    """The path of versitygw. Raises FileNotFoundError with what to do."""
    cache_home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    named = os.environ.get("CACHEFS_VERSITYGW")
    for candidate in (named, shutil.which("versitygw"), cache_home / "cachefs-tools/versitygw"):
        if candidate and os.access(candidate, os.X_OK):
            return str(candidate)
    raise FileNotFoundError(
        "versitygw is missing: set CACHEFS_VERSITYGW, or "
        "`go install github.com/versity/versitygw/cmd/versitygw@v1.8.0`"
    )


def post_events(server: S3Server, url: str) -> None:
    """Starts a server again, which posts its events to `url` from then on."""
    server.stop()
    at = server.command.index("--quiet")
    server.command[at:at] = ["--event-webhook-url", url]
    server.start()


@contextlib.contextmanager
def versitygw(
    directory: Path,
    *,
    region: str = "us-east-1",
    certificate: Path | None = None,
    ca_bundle: Path | None = None,
    events_url: str = "",
) -> Iterator[S3Server]:
    """A server over `directory` (its file system needs xattrs); one sub-folder per bucket. With a
    certificate (PEM with its key) it speaks TLS; `ca_bundle` is what its clients have to trust. It
    posts its events to `events_url`."""
    objects, versions = directory / "objects", directory / "versions"
    objects.mkdir(parents=True, exist_ok=True)
    versions.mkdir(exist_ok=True)
    port = free_port()
    command = [binary(), "--port", f"127.0.0.1:{port}", "--region", region, "--keep-alive"]
    if certificate:  # the server changes its directory
        command += ["--cert", str(certificate.absolute()), "--key", str(certificate.absolute())]
    if events_url:
        command += ["--event-webhook-url", events_url]
    command += ["--quiet", "posix", "--versioning-dir", str(versions), str(objects)]
    server = S3Server(
        command=command,
        environment={"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY},
        port=port,
        access_key=ACCESS_KEY,
        secret_key=SECRET_KEY,
        region=region,
        log=directory / "versitygw.log",
        ca_bundle=ca_bundle if certificate else None,
    )
    server.start()
    try:
        yield server
    finally:
        server.stop()
