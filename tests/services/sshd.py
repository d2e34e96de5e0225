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

import paramiko

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


@contextlib.contextmanager
def sshd(directory: Path) -> Iterator[SftpServer]:
    """A server whose user may read everything. `directory` gets keys and log."""
    tree = Path(subprocess.run([SCRIPT], capture_output=True, check=True, text=True).stdout.strip())
    port = free_port()
    for name in ("host", "user"):
        key = paramiko.RSAKey.generate(2048)
        key.write_private_key_file(str(directory / name))
        (directory / f"{name}.pub").write_text(f"ssh-rsa {key.get_base64()}\n")
    (directory / "passwd").write_text(_PASSWD)
    (directory / "config").write_text(_CONFIG.format(port=port, directory=directory))
    libraries = ":".join(str(found) for found in tree.glob("**/*-linux-gnu"))
    start = _START.format(
        directory=shlex.quote(str(directory)),
        libraries=shlex.quote(libraries),
        sshd=shlex.quote(str(tree / "usr/sbin/sshd")),
    )
    server = SftpServer(
        command=["unshare", "--mount", "--propagation", "private", "sh", "-ec", start],
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
