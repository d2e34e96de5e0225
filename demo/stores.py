"""The demo of many stores: a bucket and HDFS side by side on two nodes, and when each node sees a
change that was made past it.

Both nodes are on this machine, each with a state home of its own. A change is made past CacheFS,
by the client of the store. A thread for each mount reads the file until it has the new bytes.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from cachefs.launcher import tokens
from cachefs.launcher.state import StateHome
from demo.console import cachefs, expect, say, short
from demo.runner import run
from demo.sandbox import Sandbox
from demo.servers import BUCKET, find_versitygw, s3_server
from tests.services.hdfs import HdfsCluster, hdfs_cluster, jars
from tests.services.hdfs_files import write
from tests.services.s3_server import S3Server
from tests.services.versitygw import post_events

SECRET = "the-secret-of-this-demo"  # noqa: S105 - of servers on loopback that live for one demo
INTERVAL_S = 4
POLL_S = 1
CHANGES = 5
SEEN_LIMIT_S = 30.0
PAUSE_S = 0.005
WIDTH = 44


class Kind(NamedTuple):
    """One kind of change: what the table calls it, the file below a mount, and how it is made."""

    title: str
    name: str
    change: Callable[[bytes], None]


class StoresDemo:
    """The steps, in order."""

    def __init__(self, box: Sandbox, server: S3Server, hdfs: HdfsCluster) -> None:
        self.box = box
        self.server = server
        self.hdfs = hdfs
        self.client = server.client()
        self.files = hdfs.client()
        self.mounts: list[Path] = []
        self.second = str(box.folder / "second")  # the state home of the second node
        self.master = ""

    def fill(self) -> None:
        self.client.create_bucket(Bucket=BUCKET)
        self.put(b"first")
        self.write(b"first")

    def put(self, data: bytes) -> None:
        self.client.put_object(Bucket=BUCKET, Key="train/labels.csv", Body=data)

    def write(self, data: bytes) -> None:
        write(self.files, "/warehouse/day=1/part-0", data)

    def start(self) -> None:
        """Starts a master and two workers, adds the sources, and mounts the tree on two nodes."""
        cachefs("up", "--workers", "2", "--cache-size", "256MiB", quiet=True)
        up = json.loads(cachefs("up", "--json", quiet=True))
        self.master = str(up["processes"][0]["url"])
        s3 = ("--endpoint-url", self.server.endpoint_url)
        bucket, warehouse = f"s3://{BUCKET}/train", f"{self.hdfs.url}/warehouse"
        cachefs("ufs", "add", bucket, "/train", *s3, "--push", "webhook:demo")
        cachefs("ufs", "add", warehouse, "/warehouse", "--push", f"poll:{POLL_S}s")
        cachefs("ufs", "add", bucket, "/by-interval", *s3, "--sync-interval", f"{INTERVAL_S}s")
        url = f"{self.master}/api/v1/sources/events?path=/train&secret={quote(SECRET)}"
        post_events(self.server, url)
        tree = str(up["mount"])
        self._mount(tree, self.box.mountpoint)
        home = StateHome(self.box.folder / "home" / "cachefs")
        token = tokens.path_of(home, int(self.master.rpartition(":")[2]))
        flags = ("--home", self.second, "--cache-size", "64MiB", "--token-file", str(token))
        self._mount(tree, self.box.folder / "mnt2", *flags)

    def _mount(self, tree: str, where: Path, *flags: str) -> None:
        where.mkdir(exist_ok=True)
        cachefs("mount", tree, str(where), *flags)
        self.mounts.append(where)

    def show(self) -> None:
        """Prints the tree of the first mount."""
        for directory, _, files in sorted(os.walk(self.mounts[0])):
            for name in files:
                say(f"  {short(directory)}/{name}")

    def measure(self, kinds: list[Kind]) -> None:
        """Makes each change several times, and prints when each node saw it."""
        say(f"\n{CHANGES} changes each, the middle one:")
        say(f"{'':{WIDTH}}{'seen by node 1':>16}{'by node 2':>12}")
        for kind in kinds:
            delays = [self._delays(kind, number) for number in range(CHANGES)]
            middle = [statistics.median(of_node) for of_node in zip(*delays, strict=True)]
            say(f"{kind.title:{WIDTH}}{middle[0]:14.2f} s{middle[1]:10.2f} s")

    def _delays(self, kind: Kind, number: int) -> list[float]:
        """Makes one change; returns after how long each node read the new bytes."""
        data = b"change %d" % number
        paths = [mount / kind.name for mount in self.mounts]
        began_s: list[float] = []
        changed = threading.Event()

        def seen(path: Path) -> float:
            changed.wait()
            while path.read_bytes() != data:
                took_s = time.monotonic() - began_s[0]
                expect(took_s < SEEN_LIMIT_S, f"{path} is the old one after {took_s:.0f} s")
                time.sleep(PAUSE_S)
            return time.monotonic() - began_s[0]

        with ThreadPoolExecutor(len(paths)) as pool:
            waiting = [pool.submit(seen, path) for path in paths]
            kind.change(data)
            began_s.append(time.monotonic())
            changed.set()
            return [one.result() for one in waiting]

    def end(self) -> None:
        cachefs("umount", str(self.mounts[1]), "--home", self.second, quiet=True)
        cachefs("down", quiet=True)
        expect(not self.box.mounts(), "still mounted after down")


def play(box: Sandbox, libraries: Path) -> None:
    """Runs the whole demo."""
    make_secret(box)
    folder = box.folder / "hdfs"
    folder.mkdir()
    with (
        s3_server(box.folder / "server", real=True) as (name, server),
        hdfs_cluster(folder, 1, libraries) as hdfs,
    ):
        os.environ.update(server.credentials())
        say(f"A bucket on {name}, and HDFS: a NameNode and a DataNode.")
        demo = StoresDemo(box, server, hdfs)
        demo.fill()
        demo.start()
        demo.show()
        demo.measure(
            [
                Kind("S3, its events by webhook", "train/labels.csv", demo.put),
                Kind(f"HDFS, polled each {POLL_S} s", "warehouse/day=1/part-0", demo.write),
                Kind(f"S3, sync interval {INTERVAL_S} s", "by-interval/labels.csv", demo.put),
            ]
        )
        demo.end()


def make_secret(box: Sandbox) -> None:
    """Makes the credential `demo` of this machine, with the secret of the webhook."""
    directory = box.folder / "credentials"
    (directory / "demo").mkdir(parents=True, mode=0o700)
    (directory / "demo" / "webhook_secret").write_text(SECRET)
    os.environ["CACHEFS_CREDENTIALS_DIR"] = str(directory)


def main() -> int:
    """Runs the demo; exit status 1 if a change was not seen. Removes everything in any case."""
    started = time.monotonic()
    libraries = jars()
    if not find_versitygw():
        print("demo failed: versitygw is missing; make stores builds it", file=sys.stderr)
        return 1
    code = run(lambda box: play(box, libraries))
    if code == 0:
        say(f"\nTook {time.monotonic() - started:.0f} s; nothing is left behind.")
    return code


if __name__ == "__main__":
    sys.exit(main())
