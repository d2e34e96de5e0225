"""Announces an order on a mount by ioctl and reads the files in that order; prints JSON.

    python -I order_reader.py REPOSITORY DIRECTORY SOCKET SEED

The digest of all bytes, in order, is compared by the caller."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import random
import sys
from typing import Any


def read_in_order(directory: int, seed: int) -> dict[str, Any]:
    """Announces and reads all files of an open directory."""
    from cachefs.core.order_ioctl import PIECE, STATE, ListPiece, ListState, pieces

    with os.scandir(directory) as entries:
        inos = sorted((entry.name, entry.inode()) for entry in entries)
    random.Random(seed).shuffle(inos)
    for argument in pieces("train", [ino for _, ino in inos]):
        fcntl.ioctl(directory, PIECE, argument)
    buffer = bytearray(ListPiece("train").header())
    fcntl.ioctl(directory, STATE, buffer)
    digest = hashlib.sha256()
    for name, _ in inos:
        fd = os.open(name, os.O_RDONLY, dir_fd=directory)
        digest.update(os.read(fd, 1 << 20))
        os.close(fd)
    state = ListState.decode(buffer)._asdict()
    return {"uid": os.getuid(), "digest": digest.hexdigest(), "state": state}


def main() -> int:
    repository, where, socket, seed = sys.argv[1:]
    sys.path.insert(0, repository)
    directory = os.open(where, os.O_RDONLY | os.O_DIRECTORY)
    said = read_in_order(directory, int(seed))
    print(json.dumps({**said, "has_socket": os.path.exists(socket)}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
