"""A master over HTTP on durable LMDB with computed names, in a process of its own.

`python -m bench.master_process STORE DIRECTORIES FILES_PER_DIRECTORY`: prints its port once every
name is in the store; ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.origin import REPOSITORY
from cachefs.core.model import UfsSpec
from connectors.base import Connector
from connectors.memory import SyntheticConnector
from master.namespace import Master
from master.server.app import MasterServer

SOURCE = UfsSpec("synthetic://names")
PATH = b"/names"
END_S = 20.0


@dataclass(frozen=True)
class MasterProcess:
    pid: int
    port: int


@contextlib.contextmanager
def master_process(directories: int, files: int) -> Iterator[MasterProcess]:
    """Its store lies on the disk of the temporary directory, where commits are made durable."""
    with tempfile.TemporaryDirectory(prefix="cachefs-bench-") as store:
        command = [
            sys.executable,
            "-m",
            "bench.master_process",
            store,
            str(directories),
            str(files),
        ]
        process = subprocess.Popen(
            command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            yield MasterProcess(process.pid, int(process.stdout.readline()))
        finally:
            process.communicate(timeout=END_S)


async def serve(store: Path, directories: int, files: int) -> None:
    connector = SyntheticConnector(directories=directories, files_per_directory=files)
    master = Master.open_empty(store / "namespace")

    def open_connector(source: UfsSpec) -> Connector:
        return connector

    added = await master.add_ufs(PATH, SOURCE, connector, -1.0)
    async for _ in master.walk(added.root.ino):
        pass
    server = MasterServer(master, listen=("127.0.0.1", 0), open_connector=open_connector)
    print(await server.start(), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop()
    await master.close()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
