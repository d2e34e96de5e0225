"""Aborts a FUSE connection that is used for too long: `python -m tests.services.abort_late`.

Arguments: major:minor of the mount, seconds. A process of its own: one whose thread waits in the
kernel for an answer cannot end, nor close the descriptor that keeps the mount alive. Ends without
a word when its standard input ends; says "aborted" otherwise.
"""

from __future__ import annotations

import os
import select
import sys

from cachefs.fuse import mounting


def abort(device: str) -> None:
    """Whoever waits in the kernel for an answer gets an error; a mount that has gone is none."""
    control = mounting.control_file_system()
    try:
        fd = os.open(f"{device.partition(':')[2]}/abort", os.O_WRONLY, dir_fd=control)
    except FileNotFoundError:
        return
    finally:
        os.close(control)
    os.write(fd, b"1")
    os.close(fd)


def main() -> None:
    device, limit_s = sys.argv[1], float(sys.argv[2])
    if not select.select([0], [], [], limit_s)[0]:
        abort(device)
        print("aborted", flush=True)


if __name__ == "__main__":
    main()
