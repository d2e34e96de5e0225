"""The supervisor's process without FUSE: `fake_mount.py INTERPRETER [CAUSE]`. Its clients are run
by that interpreter, and mounting gives a descriptor of nothing, or fails for that cause."""

from __future__ import annotations

import os
import sys

from cachefs.core.errors import CannotMount
from cachefs.core.specs import ClientSpec
from cachefs.fuse.kernel.negotiation import Negotiated
from cachefs.fuse.supervisor import __main__ as program
from cachefs.fuse.supervisor import supervisor


def mount(spec: ClientSpec) -> int:
    if len(sys.argv) > 2:
        raise CannotMount(sys.argv[2], path=spec.mountpoint)
    return os.eventfd(0, os.EFD_CLOEXEC)


if __name__ == "__main__":
    supervisor.mount = mount
    supervisor.answer_init = lambda fd, spec: Negotiated(41, 0, 4096, 1, True, True)
    sys.executable = sys.argv[1]
    sys.exit(program.main())
