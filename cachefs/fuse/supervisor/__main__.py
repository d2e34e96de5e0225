"""The supervisor's process, `python -I -m cachefs.fuse.supervisor`: reads a `SupervisorSpec` on
standard input, writes `Started` to standard output."""

from __future__ import annotations

import os
import sys

import msgspec

from cachefs.core.errors import CacheFSError
from cachefs.core.messages import failure_of
from cachefs.core.specs import Started, SupervisorSpec
from cachefs.fuse.supervisor.supervisor import Supervisor
from cachefs.launcher.logs import log_to
from cachefs.launcher.ready import ReadyPipe


def main() -> int:
    spec = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=SupervisorSpec)
    ready = ReadyPipe()
    client = spec.client
    directory, name = os.path.split(client.log_file)
    log_file = os.path.join(directory, name.replace("client-", "supervisor-", 1)) if name else ""
    log_to(log_file, client.log_level, to_stderr=client.log_to_stderr, as_json=client.log_json)
    try:
        return Supervisor(spec, ready).run()
    except CacheFSError as err:
        ready.say(Started(os.getpid(), failure=failure_of(err)))
        return 1


if __name__ == "__main__":
    sys.exit(main())
