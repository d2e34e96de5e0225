"""A master over HTTP on durable LMDB with computed names, as a process.

`python -m bench.master_process STORE DIRECTORIES FILES_PER_DIRECTORY [unlisted]` prints its port
once every name is in the store (`unlisted`: at once). It ends with its standard input.
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
from master.namespace import Master
from master.server.app import MasterServer
from tests.services.memory import SyntheticConnector

SOURCE = UfsSpec("synthetic://names")
PATH = b"/names"
END_S = 20.0


@dataclass(frozen=True)
class MasterProcess:
    pid: int
    port: int


@contextlib.contextmanager
def master_process(directories: int, files: int) -> Iterator[MasterProcess]:
    """Runs the process with a store on the disk of the temporary directory: commits are durable."""
    with (
        tempfile.TemporaryDirectory(prefix="cachefs-bench-") as store,
        master_over(store, directories, files) as master,
    ):
        yield master


@contextlib.contextmanager
def master_over(store: str, directories: int, files: int, *options: str) -> Iterator[MasterProcess]:
    """Runs the process over the caller's store, which an earlier process may have left."""
    command = [sys.executable, "-m", "bench.master_process", store, str(directories), str(files)]
    process = subprocess.Popen(
        [*command, *options],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        yield MasterProcess(process.pid, int(process.stdout.readline()))
    finally:
        process.communicate(timeout=END_S)


async def serve(store: Path, directories: int, files: int, *, listed: bool) -> None:
    connector = SyntheticConnector(directories=directories, files_per_directory=files)
    master = Master.open_empty(store / "namespace")

    def open_connector(source: UfsSpec) -> Connector:
        return connector

    for path, _ in master.mounts.recorded():
        master.mounts.attach(path, connector)
    added = await master.add_ufs(PATH, SOURCE, connector, -1.0)
    if listed:
        async for _ in master.walk(added.root.ino):
            pass
    server = MasterServer(master, listen=("127.0.0.1", 0), open_connector=open_connector)
    print(await server.start(), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop()
    await master.close()


if __name__ == "__main__":
    is_listed = sys.argv[4:] != ["unlisted"]
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), listed=is_listed))
