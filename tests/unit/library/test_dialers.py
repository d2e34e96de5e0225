"""How the library finds the server of a mount again."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachefs.core.errors import Unreachable
from cachefs.core.model import UfsSpec
from cachefs.launcher.state import MountRecord, StateHome
from cachefs.library.dialers import MountDialer


@pytest.fixture
def path(tmp_path: Path) -> Iterator[str]:
    """A socket on which a server listens."""
    path = str(tmp_path / "server.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        yield path


def test_a_source_that_is_mounted_again_with_other_options(tmp_path: Path, path: str) -> None:
    home = StateHome(str(tmp_path / "home"))

    def mounted(url: str, region: str, interval_s: float) -> MountRecord:
        spec = UfsSpec(url, {"region": region})
        record = MountRecord("/mnt/x", spec, os.getpid(), path, sync_interval_s=interval_s)
        home.write_mount(record)
        return record

    dialer = MountDialer(home, mounted("s3://b", "here", 60.0))
    dialer.dial().close()
    mounted("s3://b", "there", 5.0)
    dialer.dial().close()
    assert dialer.attach.source.options == {"region": "there"}
    assert dialer.attach.sync_interval_s == 5.0
    mounted("s3://other", "there", 5.0)
    with pytest.raises(Unreachable, match="not mounted any more"):
        dialer.dial()
