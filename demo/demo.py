"""The demo: a user's session with CacheFS and a bucket, on one node and then with a cluster.

It uses only the command line, and leaves nothing behind, whatever ends it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from demo import cluster, preload, readers
from demo.console import cachefs, expect, header, row, say
from demo.dataset import Dataset, make_dataset
from demo.runner import run
from demo.sandbox import END_LIMIT_S, Sandbox, is_running, wait_until
from demo.servers import BUCKET, PREFIX, SOURCE, find_versitygw, s3_server, upload
from demo.survival import Survival
from tests.services.s3_server import S3Server

KILLS = 3


class Demo:
    """The steps, in order. `seen` collects every process of CacheFS that `status` lists."""

    def __init__(self, box: Sandbox, dataset: Dataset, server: S3Server) -> None:
        self.box = box
        self.dataset = dataset
        self.server = server
        self.mountpoint = str(box.mountpoint)
        self.seen: set[int] = set()

    def status(self) -> dict[str, Any]:
        """Returns the `cachefs status --json` document of the mount."""
        document = json.loads(cachefs("status", "--json", self.mountpoint, quiet=True))
        status: dict[str, Any] = document[0] if isinstance(document, list) else document
        self.seen |= {process["pid"] for process in status["processes"]}
        return status

    def mount(self) -> None:
        flags = ["--endpoint-url", self.server.endpoint_url, "--cache-dir", str(self.box.cache)]
        started = time.monotonic()
        cachefs("mount", SOURCE, self.mountpoint, *flags, "--cache-size", "1GiB")
        say(f"  ({time.monotonic() - started:.1f} s)")

    def read_mount(self, name: str) -> int:
        """Reads all through the mount, prints a row; returns the bytes fetched from the origin."""
        before = origin_bytes(self.status())
        rates = readers.from_directory(self.dataset, self.box.mountpoint)
        fetched = origin_bytes(self.status()) - before
        row(name, rates, fetched)
        return fetched

    def compare(self) -> None:
        """Compares cold and warm reads through the mount with reads without it."""
        header()
        fetched = self.read_mount("cachefs, cold")
        expect(fetched == self.dataset.total_bytes, f"{fetched} bytes fetched for a cold pass")
        readers.drop_kernel_caches(self.dataset, self.paths_below(self.box.mountpoint))
        expect(self.read_mount("cachefs, warm") == 0, "a warm pass read from the origin")
        row(
            "plain GETs from the server, 16 threads",
            readers.from_bucket(self.dataset, self.server, BUCKET, PREFIX),
        )
        row(
            "the same files in a local directory",
            readers.from_directory(self.dataset, self.dataset.root),
        )

    def freeze(self) -> None:
        """Shows that a frozen directory reads as a local one: the kernel alone serves it."""
        cachefs("freeze", self.mountpoint, "--wait")
        header()
        before = origin_bytes(self.status())
        frozen_paths, local_paths = map(self.paths_below, (self.box.mountpoint, self.dataset.root))
        ways = frozen_paths, self.cached_files(), local_paths
        frozen, cached, local = readers.by_turns(self.dataset, ways)
        fetched = origin_bytes(self.status()) - before
        row("cachefs, frozen", frozen, fetched)
        row("the cache's files, by their own names", cached)
        row("the same files in a local directory", local)
        say(f"  (medians of {readers.TURNS} passes each, by turns)")
        expect(fetched == 0, "a frozen directory read from the origin")
        cachefs("thaw", self.mountpoint)

    def paths_below(self, root: Path) -> readers.Paths:
        return readers.paths_below(self.dataset, root)

    def cached_files(self) -> readers.Paths:
        """Returns the cache file of each file of the mount."""
        lines = cachefs("view", self.mountpoint, "--print", "--json", quiet=True).splitlines()
        found = [json.loads(line) for line in lines]
        return {os.path.relpath(f["path"], self.mountpoint): f["cached_at"] for f in found}

    def pid_of(self, role: str) -> int:
        """Returns the process of a role; 0 if none runs."""
        pids = (p["pid"] for p in self.status()["processes"] if p["role"] == role)
        return next((pid for pid in pids if is_running(pid)), 0)

    def client_after(self, killed: list[int]) -> int:
        """Waits for the client that succeeds the killed ones, and returns it."""
        found = 0

        def has_started() -> bool:
            nonlocal found
            found = self.pid_of("client")
            return found not in (0, *killed)

        expect(wait_until(has_started, END_LIMIT_S), "no other client started")
        return found

    def kill_the_client(self) -> None:
        """Kills the client repeatedly with SIGKILL under readers, which must see no error."""
        survival = Survival(self.dataset, self.box.mountpoint)
        killed: list[int] = []
        with survival.reading():
            for _ in range(KILLS):
                killed.append(self.client_after(killed))
                self.box.kill(killed[-1:])
            self.client_after(killed)
        say(
            f"\n$ kill -9 {' '.join(map(str, killed))}   # the client, {KILLS} times, under readers"
        )
        expect(not survival.problems, f"readers noticed: {survival.problems[:3]}")
        say(
            f"  {survival.files:,} files, {survival.bytes / 1e9:.1f} GB read: no error,"
            f" no wrong byte; the longest wait was {survival.longest_s:.2f} s"
        )

    def kill_everything(self) -> None:
        """Kills all processes of CacheFS with SIGKILL."""
        pids = {process["pid"]: process["role"] for process in self.status()["processes"]}
        say(f"\n$ kill -9 {' '.join(f'{pid} ({role})' for pid, role in sorted(pids.items()))}")
        self.box.kill(list(pids))

    def remount(self) -> None:
        self.mount()
        header()
        fetched = self.read_mount("cachefs, after kill -9 and a new mount")
        expect(fetched == 0, f"the cache was not warm: {fetched} bytes fetched")

    def umount(self) -> None:
        """Unmounts as a user would, and checks that no mount and no process is left."""
        cachefs("umount", self.mountpoint)
        expect(not self.box.mounts(), "still mounted after umount")
        ended = wait_until(lambda: not any(map(is_running, self.seen)), END_LIMIT_S)
        left = [pid for pid in self.box.processes() if pid != self.server.pid]
        expect(ended and not left, f"processes left after umount: {left or self.seen}")
        say("Nothing is mounted, nothing is running.")


def origin_bytes(status: dict[str, Any]) -> int:
    """Returns the body bytes fetched from the origin since the server started."""
    value: int = status["cache"]["origin_bytes"]
    return value


def play(box: Sandbox, real_server: bool) -> None:
    """Runs the whole demo."""
    dataset = make_dataset(box.folder / "local")
    with s3_server(box.folder / "server", real=real_server) as (name, server):
        upload(server, dataset.root, dataset.files)
        os.environ.update(server.credentials())
        say(
            f"A bucket on {name}: {len(dataset.images)} images of about 110 KiB and a shard of"
            f" 128 MiB.\nD={box.folder} holds all files of this demo."
        )
        demo = Demo(box, dataset, server)
        demo.mount()
        demo.compare()
        demo.freeze()
        demo.kill_the_client()
        demo.kill_everything()
        demo.remount()
        demo.umount()
        say("\nA cache smaller than the data: what is loaded and pinned stays.")
        preload.play(box, dataset, server)
        say("\nMany nodes, one cache: the same bucket, three workers.")
        cluster.play(box, dataset, server)
        left = [pid for pid in box.processes() if pid != server.pid]
        expect(not left, f"processes left at the end: {left}")


def main() -> int:
    """Runs the demo; exit status 1 if a check failed. Removes everything in any case."""
    started = time.monotonic()
    real_server = find_versitygw()
    code = run(lambda box: play(box, real_server))
    if code == 0:
        took_s = time.monotonic() - started
        say(f"Every byte was checked. Took {took_s:.0f} s; nothing is left behind.")
    return code


if __name__ == "__main__":
    sys.exit(main())
