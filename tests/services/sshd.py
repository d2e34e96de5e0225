"""OpenSSH's server with SFTP only, for tests: on a free loopback port, with keys of its own, for a
user (`reader`) that only its own mount namespace knows. Stopped by pid.

`scripts/sshd` unpacks it once per user.
"""

from __future__ import annotations

import contextlib
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from tests.services.namespaces import without_mounts
from tests.services.server_process import ServerProcess, free_port

SCRIPT = Path(__file__).parents[2] / "scripts" / "sshd"
USER = "reader"

_CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {directory}/host
PidFile none
AuthorizedKeysFile {directory}/user.pub
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
PasswordAuthentication no
MaxStartups 100
Subsystem sftp internal-sftp
ForceCommand internal-sftp
"""
_PASSWD = f"{USER}:*:0:0::/:/bin/sh\nsshd:*:65534:65534::/run/sshd:/bin/false\n"
_START = """\
mount --bind {directory}/passwd /etc/passwd
mount -t tmpfs tmpfs /run
mkdir -m 755 /run/sshd
export LD_LIBRARY_PATH={libraries}
exec {sshd} -D -e -f {directory}/config
"""


@dataclass(kw_only=True)
class SftpServer(ServerProcess):
    """The process, and the key file of its user."""

    key_file: Path

    @property
    def options(self) -> dict[str, str]:
        """What a source of this server has as options."""
        return {
            "port": str(self.port),
            "key_filename": str(self.key_file),
            "look_for_keys": "false",
            "allow_agent": "false",
        }


def write_key(path: Path) -> None:
    """Writes a new key, and its public half beside it."""
    key = Ed25519PrivateKey.generate()
    path.touch(0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    path.with_suffix(".pub").write_bytes(public + b"\n")


@contextlib.contextmanager
def sshd(directory: Path) -> Iterator[SftpServer]:
    """A server whose user may read everything. `directory` gets keys and log."""
    tree = Path(subprocess.run([SCRIPT], capture_output=True, check=True, text=True).stdout.strip())
    port = free_port()
    write_key(directory / "host")
    write_key(directory / "user")
    (directory / "passwd").write_text(_PASSWD)
    (directory / "config").write_text(_CONFIG.format(port=port, directory=directory))
    libraries = ":".join(str(found) for found in tree.glob("**/*-linux-gnu"))
    start = _START.format(
        directory=shlex.quote(str(directory)),
        libraries=shlex.quote(libraries),
        sshd=shlex.quote(str(tree / "usr/sbin/sshd")),
    )
    server = SftpServer(
        command=without_mounts("sh", "-ec", start),
        environment={},
        port=port,
        log=directory / "sshd.log",
        key_file=directory / "user",
    )
    server.start()
    try:
        yield server
    finally:
        server.stop()
