"""A server process for tests of the launcher: `fake_cachefs_server.py MODE`, spec on stdin.

Modes: serve (until told to stop), slow (after a gate), old (keeps the locks, as an earlier
version does), fail (a typed failure), die (no answer), junk, hang.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parents[3]))

from cachefs.core.errors import NotFound
from cachefs.core.messages import failure_of
from cachefs.core.specs import ServerSpec, Started
from cachefs.launcher.state import Pointer, StateHome, write_pointer
from tests.unit.cli.fake_node import FakeNode


def say(started: Started, *held: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # a starter that has gone
        os.write(1, msgspec.json.encode(started) + b"\n")
    for fd in (1, *held):
        os.close(fd)


def serve(spec: ServerSpec, *, keeps_locks: bool = False) -> None:
    directory = StateHome(spec.home).source_dir(spec.source)
    socket_path = directory / "server.sock"
    socket_path.unlink(missing_ok=True)
    node = FakeNode({})
    with node.listening(socket_path):
        for place in (directory, Path(spec.cache_dir)):
            write_pointer(place, Pointer(str(socket_path), os.getpid()))
        facts = {"spec": msgspec.to_builtins(spec), "open": sorted(os.listdir("/proc/self/fd"))}
        held = () if keeps_locks else spec.launch_fds
        (directory / "seen.json").write_bytes(msgspec.json.encode(facts))
        say(Started(os.getpid(), warning="served by a fake"), *held)
        node.stopped.wait()


def main() -> int:
    mode = sys.argv[1]
    spec = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=ServerSpec)
    Path(spec.home, f"pid-{mode}").write_text(str(os.getpid()))
    if mode == "serve":
        serve(spec)
    elif mode == "old":
        serve(spec, keeps_locks=True)
    elif mode == "slow":  # until the test lets it
        Path(spec.home, "gate").read_text()
        serve(spec)
    elif mode == "fail":
        error = NotFound("no such bucket", remedy="check the name", path=spec.source.url)
        say(Started(os.getpid(), failure=failure_of(error)))
    elif mode == "die":
        print("some lines\nlast words", file=sys.stderr)
    elif mode == "junk":
        os.write(1, b"not json\n")
    elif mode == "hang":
        signal.pause()
    return 1


if __name__ == "__main__":
    sys.exit(main())
