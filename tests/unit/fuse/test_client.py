"""The client's process, without a kernel and a server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
import trio

from cachefs.core import messages as m
from cachefs.core.model import Inode, Kind, NamespaceId
from cachefs.core.specs import ClientSpec, UfsSpec
from cachefs.fuse import client as client_module
from cachefs.fuse import pyfuse3_mount
from cachefs.fuse.client import Client

LOST = m.TierState(False, 0, doubtful=True)


class Conn:
    """A server that tells of a loss as soon as the client has attached."""

    on_reconnected: Callable[[m.Attached], None]
    on_event: Callable[[m.Message], None]

    async def attach(self, body: m.Attach) -> m.Attached:
        self.on_event(LOST)
        return m.Attached(NamespaceId(b"n" * 16), Inode(1, Kind.DIRECTORY))


class HeardVfs:
    """Stands for the file system."""

    made: HeardVfs

    def __init__(self, *_: Any, **__: Any) -> None:
        self.heard: list[m.Message] = []
        HeardVfs.made = self

    def on_event(self, event: m.Message) -> None:
        self.heard.append(event)

    on_reconnected = close = lambda *_: None


def test_what_the_server_says_of_tiers_before_there_is_a_file_system_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[S-lost-writes] It is known before files are served, or taken over."""
    served: list[list[m.Message]] = []

    async def serve(client: Client, conn: Conn, vfs: HeardVfs, warning: str) -> None:
        served.append([*vfs.heard])

    monkeypatch.setattr(client_module, "Vfs", HeardVfs)
    monkeypatch.setattr(pyfuse3_mount, "serve", serve)

    async def script() -> None:
        spec = ClientSpec(str(tmp_path), "", UfsSpec("s3://b"), "/m", transport="kernel")
        client, conn = Client(spec, ANY, None), Conn()
        conn.on_event = client._early_event
        await client._serve(conn)  # type: ignore[arg-type]

    trio.run(script)
    assert served == [[LOST]]
