"""What tests of load jobs share: many objects at once, commands that run beside a test."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.integration.conftest import COMMAND_LIMIT_S, Bucket, Node
from tests.integration.dataset import body
from tests.services.cluster import Machine
from tests.services.commands import CACHEFS
from tests.services.proxy import Counters
from worker.loads.schedule import REQUESTS

FILE_BYTES = 4000
MANY = 2000
# What a death of a worker may cost: what was under way, and came and was not recorded yet.
LOST_BYTES = 2 * REQUESTS * FILE_BYTES


def put_many(bucket: Bucket, count: int, size_bytes: int, prefix: str = "train") -> int:
    """Objects of one size in class folders, put into the server's own directory: one by one over
    HTTP they take longer than the test. Their bytes in all."""
    root = bucket.server.log.parent / "objects" / bucket.name
    seed = body(count, size_bytes)
    for number in range(count):
        path = root / prefix / f"n{number % 20:02d}" / f"{number:05d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        data = number.to_bytes(8, "big") + seed[8:]
        path.write_bytes(data)
        os.setxattr(path, "user.etag", f'"{hashlib.md5(data).hexdigest()}"'.encode())
    return count * size_bytes


def of_train(seen: Counters) -> int:
    """Bytes that came of what `put_many` put."""
    return sum(count for key, count in seen.bytes_by_key.items() if key.startswith("train/"))


@contextlib.contextmanager
def waiting(environment: dict[str, str], *arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """`cachefs ARGUMENTS`, running beside the test."""
    command = [CACHEFS, *map(str, arguments)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, text=True, **pipes
    ) as it:
        try:
            yield it
        finally:
            it.kill()


def ended(it: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = it.communicate(timeout=COMMAND_LIMIT_S)
    return it.returncode, out, err


def du(node: Node | Machine, path: str | Path) -> dict[str, Any]:
    run = node.ok if isinstance(node, Node) else node.run
    (found,) = json.loads(run("du", path, "--json"))
    return dict(found)
