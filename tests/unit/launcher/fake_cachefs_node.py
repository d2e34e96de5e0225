"""A node's worker for tests of the launcher: spec on stdin, serves until told to stop."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parents[3]))

from cachefs.core.specs import Started, WorkerSpec
from cachefs.launcher.cluster import node_dir
from cachefs.launcher.state import SOCKET_NAME, Pointer, write_pointer
from tests.unit.cli.fake_node import FakeNode


def main() -> int:
    spec = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=WorkerSpec)
    directory = node_dir(spec)
    socket_path = directory / SOCKET_NAME
    socket_path.unlink(missing_ok=True)
    node = FakeNode({})
    with node.listening(socket_path):
        write_pointer(directory, Pointer(str(socket_path), os.getpid(), spec.stays, "http://x"))
        os.write(1, msgspec.json.encode(Started(os.getpid())) + b"\n")
        for fd in (1, *spec.launch_fds):
            os.close(fd)
        node.stopped.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
