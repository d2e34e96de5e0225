"""The demo's cluster part. Three workers on this machine stand for three nodes; one is killed
during an epoch. Then a machine without a worker reads the data that the others have cached.

A proxy in front of the bucket's server counts the bytes that the origin sends.
"""

from __future__ import annotations

import concurrent.futures
import json
import re
import urllib.request
from typing import Any

from cachefs.client.credentials import presented_token
from cachefs.core.access import HEADER, header_of
from cachefs.core.specs import Security
from cachefs.launcher import tokens
from cachefs.launcher.state import StateHome
from demo import readers
from demo.console import cachefs, expect, header, row, say
from demo.dataset import Dataset
from demo.readers import Rates
from demo.sandbox import END_LIMIT_S, Sandbox, is_running, wait_until
from demo.servers import SOURCE
from tests.services.proxy import FaultProxy
from tests.services.s3_server import S3Server

WORKERS = 3
WORKER_SIZE = "256MiB"
TRAINER_SIZE = "64MiB"
PATH = "/imagenet"
IN_FLIGHT_BYTES = 16 << 20  # requests of the killed worker that no metric counts
ORIGIN_BYTES = re.compile(r'^cachefs_worker_bytes_total\{source="origin"\} (\S+)$', re.MULTILINE)


class ClusterDemo:
    """The steps, in order. `up` is the JSON document of `cachefs up`."""

    def __init__(self, box: Sandbox, dataset: Dataset, proxy: FaultProxy) -> None:
        self.box = box
        self.dataset = dataset
        self.proxy = proxy
        self.mountpoint = box.mountpoint
        self.up: dict[str, Any] = {}
        self._counted = 0
        self._lost_bytes = 0  # bytes that only the killed worker may have cached

    def start(self) -> None:
        """Starts a master and its workers, adds a source, and mounts it."""
        cachefs("up", "--workers", str(WORKERS), "--cache-size", WORKER_SIZE)
        self.up = json.loads(cachefs("up", "--json", quiet=True))
        cachefs("ufs", "add", SOURCE, PATH, "--endpoint-url", self.proxy.endpoint_url)
        cachefs("mount", self.source, str(self.mountpoint))

    @property
    def source(self) -> str:
        """The URL that is mounted."""
        return str(self.up["mount"]).rstrip("/") + PATH

    def origin_bytes(self) -> int:
        """Returns the bytes of objects that the origin sent since the previous call."""
        before, self._counted = self._counted, self.proxy.counters().object_bytes
        return self._counted - before

    def lose_a_worker(self) -> None:
        """Reads a cold epoch, and kills one worker after half of the images."""
        victim = self._other_worker()
        self.origin_bytes()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            epoch = pool.submit(readers.from_directory, self.dataset, self.mountpoint)
            half = self._counted + self.dataset.image_bytes // 2
            self.proxy.wait_until(lambda counters: counters.object_bytes >= half)
            fetched = fetched_by(victim["url"], self._headers())
            self._lost_bytes = fetched + IN_FLIGHT_BYTES
            self.box.kill([victim["pid"]])
            say(f"\n$ kill -9 {victim['pid']}   # {victim['name']}, in the middle of an epoch")
            rates = epoch.result()
        header()
        self._show("the epoch, cold, one worker killed", rates, fetched)

    def read_elsewhere(self) -> None:
        """Reads through a mount with another state home, as a machine without a worker would."""
        home, mountpoint = str(self.box.folder / "elsewhere"), self.box.folder / "mnt2"
        mountpoint.mkdir()
        flags = ["--home", home, "--cache-size", TRAINER_SIZE, "--token-file", self._token_file]
        cachefs("mount", self.source, str(mountpoint), *flags)
        header()
        rates = readers.from_directory(self.dataset, mountpoint)
        fetched = self.origin_bytes()
        row("a machine without a worker", rates, fetched)
        of_peers = self.dataset.total_bytes - fetched
        say(f"  {of_peers / 1e6:.1f} MB from the other workers; only the dead one had the rest")
        expect(fetched <= self._lost_bytes, f"the origin sent {fetched} bytes again")
        cachefs("umount", str(mountpoint), "--home", home)

    def end(self) -> None:
        """Ends the cluster, and checks that no mount and no process is left."""
        cachefs("down")
        expect(not self.box.mounts(), "still mounted after down")
        pids = [process["pid"] for process in self.up["processes"]]
        ended = wait_until(lambda: not any(map(is_running, pids)), END_LIMIT_S)
        expect(ended, f"processes left after down: {pids}")

    @property
    def _token_file(self) -> str:
        """The token file of the cluster; another machine would have a copy."""
        home = StateHome(self.box.folder / "home" / "cachefs")
        return str(tokens.path_of(home, int(self.up["processes"][0]["url"].rpartition(":")[2])))

    def _headers(self) -> dict[str, str]:
        """Returns the headers that a monitoring agent sends."""
        return {HEADER: header_of(presented_token(Security(self._token_file)))}

    def _other_worker(self) -> dict[str, Any]:
        """Returns a worker that does not serve this node's mount."""
        status = json.loads(cachefs("status", "--json", str(self.mountpoint), quiet=True))
        used = {process["pid"] for process in status["processes"]}
        workers: list[dict[str, Any]] = self.up["processes"][1:]
        return next(process for process in workers if process["pid"] not in used)

    def _show(self, name: str, rates: Rates, by_victim: int) -> None:
        sent = self.origin_bytes()
        row(name, rates, sent)
        again = sent - self.dataset.total_bytes
        say(
            f"  no error, no wrong byte; of {self.dataset.total_bytes / 1e6:.1f} MB the origin sent"
            f" {max(0, again) / 1e6:.1f} MB again\n  (the dead worker had fetched"
            f" {by_victim / 1e6:.1f} MB)"
        )
        expect(0 <= again <= self._lost_bytes, f"the origin sent {again} bytes again")


def fetched_by(url: str, headers: dict[str, str]) -> int:
    """Returns the bytes that a worker has fetched from the origin, from its metrics."""
    request = urllib.request.Request(f"{url}/metrics", headers=headers)
    with urllib.request.urlopen(request, timeout=END_LIMIT_S) as reply:
        found = ORIGIN_BYTES.search(reply.read().decode())
    return int(float(found[1])) if found else 0


def play(box: Sandbox, dataset: Dataset, server: S3Server) -> None:
    """Runs this part. The proxy speaks TLS if the server does; both use one certificate."""
    trusted = server.ca_bundle
    with FaultProxy(server.endpoint_url, certificate=trusted, upstream_ca=trusted) as proxy:
        demo = ClusterDemo(box, dataset, proxy)
        demo.start()
        demo.lose_a_worker()
        demo.read_elsewhere()
        demo.end()
