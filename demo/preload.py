"""The demo's part about jobs and policies, with a cache smaller than the data. It loads and pins
the images, reads more than the rest of the cache holds, and checks that the images are still
cached."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import xxhash

from demo import readers
from demo.console import CACHEFS, COMMAND_LIMIT_S, DemoFailed, cachefs, expect, say, short
from demo.dataset import SHARD, SHARD_BYTES, Dataset
from demo.sandbox import Sandbox
from demo.servers import BUCKET, PREFIX
from tests.services.s3_server import S3Server

SIZE: Final = "256MiB"  # the images, and one shard
RATE: Final = "64MiB/s"  # slow enough to show the bar
OTHER: Final = ("other/0.tar", "other/1.tar")
COLUMNS: Final = 96
_CONTROL: Final = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]|\r")


def play(box: Sandbox, dataset: Dataset, server: S3Server) -> None:
    """Mounts the whole bucket with a small cache, and unmounts it at the end."""
    client = server.client()
    for key in OTHER:  # the shard under other names
        client.copy_object(Bucket=BUCKET, Key=key, CopySource=f"{BUCKET}/{PREFIX}/{SHARD}")
    mounted = box.mountpoint
    flags = ["--endpoint-url", server.endpoint_url, "--cache-dir", str(box.folder / "small")]
    flags += ["--cache-size", SIZE, "--admission", "always"]
    cachefs("mount", f"s3://{BUCKET}", str(mounted), *flags)
    images = str(mounted / PREFIX / "images")
    with_a_bar("load", images, "--wait", "--bandwidth", RATE)
    cachefs("pin", images, "--wait")
    fill_with_other_things(dataset, mounted)
    cachefs("du", images, str(mounted / "other"))
    still_warm(dataset, mounted)
    cachefs("umount", str(mounted))


def fill_with_other_things(dataset: Dataset, mounted: Path) -> None:
    """Reads more than the rest of the cache holds."""
    (wanted,) = dataset.shard.values()
    for key in OTHER:
        hasher = xxhash.xxh3_128()
        with (mounted / key).open("rb", buffering=0) as file:
            while piece := file.read(readers.CHUNK_BYTES):
                hasher.update(piece)
        expect(hasher.hexdigest() == wanted, f"{key} is not what was uploaded")
    say(f"\n$ cat {short(str(mounted))}/other/* > /dev/null   # {SHARD_BYTES * 2 >> 20} MiB")


def still_warm(dataset: Dataset, mounted: Path) -> None:
    before = _origin_bytes(mounted)
    started = time.perf_counter()
    for name, wanted in dataset.images.items():
        data = (mounted / PREFIX / name).read_bytes()
        expect(xxhash.xxh3_128_hexdigest(data) == wanted, f"{name} is not what was uploaded")
    taken_s = time.perf_counter() - started
    fetched = _origin_bytes(mounted) - before
    expect(fetched == 0, f"pinned files were read from the origin: {fetched} bytes")
    rate = dataset.image_bytes / taken_s / 1e6
    say(
        f"  the images again: {len(dataset.images) / taken_s:,.0f} /s, {rate:,.0f} MB/s,"
        f" {fetched / 1e6:.1f} MB from the origin"
    )


def _origin_bytes(mounted: Path) -> int:
    status = json.loads(cachefs("status", "--json", str(mounted), quiet=True))
    count: int = status["cache"]["origin_bytes"]
    return count


# ---- a terminal ----------------------------------------------------------------------------------


def with_a_bar(*arguments: str) -> None:
    """Runs a command on a pseudo-terminal. On a terminal its bar is copied live; elsewhere one
    frame from the middle is printed."""
    say(short(f"\n$ cachefs {' '.join(arguments)}"))
    shown = _on_a_terminal([CACHEFS, *arguments])
    if not sys.stdout.isatty():
        frames = [frame for frame in _frames(shown) if "%" in frame and "left" in frame]
        say("\n".join(frames[len(frames) // 2 : len(frames) // 2 + 1]))
    text = _CONTROL.sub(b"", shown).decode(errors="replace")
    last = text.rstrip().splitlines()[-1]
    expect(last.startswith("OK, loaded"), f"cachefs {arguments[0]}: {last}")
    if not sys.stdout.isatty():
        say(short(last))


def _on_a_terminal(command: list[str]) -> bytes:
    """Returns all output of a command; copies it to this terminal if stdout is one."""
    outer, inner = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm"}
    if not sys.stdout.isatty():
        environment["NO_COLOR"] = "1"
    seen = bytearray()
    with subprocess.Popen(
        command, stdin=inner, stdout=inner, stderr=inner, env=environment
    ) as process:
        os.close(inner)
        try:
            while piece := _read(outer):
                seen += piece
                if sys.stdout.isatty():
                    os.write(sys.stdout.fileno(), piece)
        finally:
            os.close(outer)
        if process.wait(COMMAND_LIMIT_S):
            raise DemoFailed(f"{' '.join(command[1:])}: {_CONTROL.sub(b'', seen).decode()}")
    return bytes(seen)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # EIO: all writers have closed it
        return b""


def _frames(shown: bytes) -> list[str]:
    """Returns the drawn frames in order: each begins by erasing the previous one."""
    parts = re.split(rb"(?:\r?\x1b\[\d*[AK])+", shown)
    texts = (_CONTROL.sub(b"", part).decode(errors="replace") for part in parts)
    return [text.strip("\n") for text in texts]
